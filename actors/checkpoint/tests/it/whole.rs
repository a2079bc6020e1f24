//! Whole checkpoints: what is beside the tensors, retention, exported folders, other cuts.

use std::fs;
use std::process::Command;
use std::sync::Arc;

use bytes::Bytes;
use futures::future;
use odeon_algorithms::parallel::{Region, Span};
use odeon_algorithms::weights::load_directory;
use odeon_checkpoint::export::{Export, ExportError, export};
use odeon_checkpoint::loader_state::{ReaderState, Sample, Stream};
use odeon_checkpoint::reshard::{Cuts, reshard};
use odeon_checkpoint::{
    Buffers, Dtype, Load, Opened, Options, Retention, Save, SavedReader, Storage, TensorName,
    WantedReader, Which, commit, verify,
};
use odeon_mesh::mesh;
use odeon_skip::{Need, skip};
use safetensors::SafeTensors;

use crate::world::{Known, alone, ends, expect_same, flat, load, reference, save, small, tensors};

/// SEMANTICS 94: the files are safetensors that anybody reads.
#[tokio::test]
async fn files_are_safetensors() {
    let folder = tempfile::tempdir().unwrap();
    let storage = Storage::folder(folder.path()).unwrap();
    let known = tensors(1);
    let locals = flat(&known, 2);
    for saved in save(
        &mut ends(&storage, 2, Options::default()),
        &known,
        &locals,
        1,
    )
    .await
    {
        saved.unwrap();
    }
    let (entry, manifest) = commit::find(&storage, Which::Latest).await.unwrap();
    let bytes = fs::read(folder.path().join(entry.file(&manifest.files[0].name))).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let names: Vec<String> = file.iter().map(|(name, _)| name.to_owned()).collect();
    assert!(
        names.contains(&"actor/model/norm[0:4]".to_owned()),
        "{names:?}"
    );
    assert!(
        names.contains(&"critic/model/layers.0.w[0:2, 0:3]".to_owned()),
        "{names:?}"
    );
    let norm = file.tensor("actor/model/norm[0:4]").unwrap();
    assert_eq!((norm.dtype(), norm.shape()), (Dtype::F32, &[4][..]));
    assert_eq!(norm.data(), &known[1].bytes[..16]);
}

fn reader(index: u64) -> ReaderState {
    ReaderState {
        streams: vec![Stream::new(format!("s{index}"), 10 + index, Some(100))],
        buffer: (0..3)
            .map(|at| Sample {
                source: format!("s{index}"),
                index: at,
                bytes: Bytes::from(vec![index as u8; 5]),
            })
            .collect(),
    }
}

/// SEMANTICS 97: states of readers are saved by whoever has them, and dealt to more or fewer.
#[tokio::test]
async fn readers_of_a_loader_become_more_or_fewer() {
    let storage = Storage::memory();
    let saves =
        ends(&storage, 2, small())
            .into_iter()
            .enumerate()
            .map(|(rank, mut end)| async move {
                let save = Save {
                    step: 3,
                    blobs: vec![(format!("rng/{rank}"), Bytes::from(vec![rank as u8; 100]))],
                    readers: vec![SavedReader {
                        loader: "train".into(),
                        index: rank,
                        of: 2,
                        state: reader(rank as u64),
                    }],
                    ..Save::default()
                };
                let source: Vec<Vec<u8>> = vec![];
                end.save(save, &source).await.unwrap().wait().await.unwrap();
            });
    future::join_all(saves).await;
    for readers in [1, 2, 3, 5] {
        let loads = ends(&storage, readers, small())
            .into_iter()
            .enumerate()
            .map(|(rank, mut end)| async move {
                let load = Load {
                    blobs: vec!["rng/1".into()],
                    readers: vec![WantedReader {
                        loader: "train".into(),
                        index: rank,
                        of: readers,
                    }],
                    ..Load::default()
                };
                end.load(load, &Arc::new(Buffers::default())).await.unwrap()
            });
        let loaded = future::join_all(loads).await;
        let mut samples: Vec<(String, u64)> = vec![];
        for (rank, loaded) in loaded.iter().enumerate() {
            assert_eq!(loaded.blobs, [vec![1; 100]]);
            let state = &loaded.readers[0];
            if readers == 2 {
                assert_eq!(*state, reader(rank as u64), "to the bit");
            }
            for sample in &state.buffer {
                samples.push((sample.source.clone(), sample.index));
            }
            for stream in &state.streams {
                let mut stream = stream.clone();
                samples.extend(std::iter::from_fn(|| {
                    Some((stream.source.clone(), stream.take()?))
                }));
            }
        }
        samples.sort();
        let mut all: Vec<(String, u64)> = [0, 1]
            .iter()
            .flat_map(|index| {
                (0..3)
                    .chain(10 + index..100)
                    .map(move |at| (format!("s{index}"), at))
            })
            .collect();
        all.sort();
        assert_eq!(samples, all, "{readers} readers");
    }
    let mut one = ends(&storage, 1, small()).remove(0);
    let load = Load {
        readers: vec![WantedReader {
            loader: "eval".into(),
            index: 0,
            of: 1,
        }],
        ..Load::default()
    };
    let said = one
        .load(load, &Arc::new(Buffers::default()))
        .await
        .unwrap_err()
        .to_string();
    assert!(said.contains("has no data loader `eval`"), "{said}");
}

/// SEMANTICS 98: retention keeps the newest and the periodic ones, and going back is allowed.
#[tokio::test]
async fn old_checkpoints_go_and_a_run_that_went_back_is_in_force() {
    let storage = Storage::memory();
    let options = Options {
        retention: Retention {
            newest: 2,
            every: Some(10),
        },
        ..small()
    };
    let mut ranks = ends(&storage, 2, options);
    for step in [5, 10, 15, 20, 25, 12, 14] {
        let known = tensors(step);
        for saved in save(&mut ranks, &known, &flat(&known, 2), step).await {
            saved.unwrap();
        }
    }
    let entries = commit::list(&storage).await.unwrap();
    let steps: Vec<u64> = entries.iter().map(|entry| entry.step).collect();
    assert_eq!(steps, [10, 20, 12, 14]);
    let known = tensors(14);
    let whole = alone(&known);
    let loaded = load(&mut ends(&storage, 1, small()), &whole, Which::Latest).await;
    expect_same(&known, &whole, loaded);
}

/// What is forgotten is not in force again, and the next one is.
#[tokio::test]
async fn later_checkpoints_are_forgotten_and_what_comes_then_is_in_force() {
    let storage = Storage::memory();
    let keep_all = Options {
        retention: Retention {
            newest: 9,
            every: None,
        },
        ..small()
    };
    let save_at = async |step| {
        let known = tensors(step);
        let mut ranks = ends(&storage, 2, keep_all);
        for saved in save(&mut ranks, &known, &flat(&known, 2), step).await {
            saved.unwrap();
        }
    };
    let steps = |entries: &[commit::Entry]| entries.iter().map(|it| it.step).collect::<Vec<_>>();
    for step in [5, 10, 15, 20] {
        save_at(step).await;
    }
    let forgotten = commit::forget_after(&storage, 10).await.unwrap();
    assert_eq!(steps(&forgotten), [20, 15]);
    assert_eq!(steps(&commit::list(&storage).await.unwrap()), [5, 10]);
    assert!(commit::forget_after(&storage, 10).await.unwrap().is_empty());
    save_at(12).await;
    let (entry, _) = commit::find(&storage, Which::Latest).await.unwrap();
    assert_eq!(entry.step, 12);
}

/// SEMANTICS 96: by its names, too, nothing comes that was not saved.
#[tokio::test]
async fn an_open_checkpoint_gives_blobs_and_tensors_by_their_names() {
    let folder = tempfile::tempdir().unwrap();
    let storage = Storage::folder(folder.path()).unwrap();
    let nothing = Opened::of(&storage, Which::Latest).await.unwrap();
    assert!(nothing.is_none());
    let known = tensors(3);
    let whole = alone(&known).remove(0);
    let save = Save {
        step: 3,
        local: whole.clone(),
        blobs: vec![("notes".into(), Bytes::from_static(b"hear, hear"))],
        ..Save::default()
    };
    let source = reference(&known, &whole);
    let mut end = ends(&storage, 1, small()).remove(0);
    let saving = end.save(save, &source).await.unwrap();
    saving.wait().await.unwrap();

    let opened = Opened::of(&storage, Which::Latest).await.unwrap().unwrap();
    let path = folder.path().join(opened.entry().folder());
    let at = Opened::at(&path).await.unwrap().unwrap();
    assert_eq!(at.entry(), opened.entry());
    assert!(Opened::at(folder.path()).await.unwrap().is_none());
    let name = |known: &Known| TensorName {
        role: known.role.clone(),
        state: known.state.clone(),
        tensor: known.name.clone(),
    };
    for opened in [&opened, &at] {
        let notes = opened.blob("notes").await.unwrap();
        assert_eq!(notes.as_deref(), Some(&b"hear, hear"[..]));
        assert_eq!(opened.blob("others").await.unwrap(), None);
        for known in &known {
            let mut name = name(known);
            let bytes = opened.tensor(&name).await.unwrap();
            assert_eq!(bytes.as_ref(), Some(&known.bytes));
            if let [rows, others @ ..] = known.shape.as_slice() {
                let spans = std::iter::once(rows / 3..*rows);
                let spans = spans.chain(others.iter().map(|length| 0..*length));
                let region = Region::new(spans.map(Span::from).collect());
                let bytes = opened.region(&name, &region).await.unwrap();
                let begin = known.bytes.len() / rows.max(&1) * (rows / 3);
                assert_eq!(bytes.as_deref(), Some(&known.bytes[begin..]));
            }
            name.role = "nobody".into();
            assert_eq!(opened.tensor(&name).await.unwrap(), None);
        }
    }
    let file = path.join("rank-00000-000.safetensors");
    let mut bent = fs::read(&file).unwrap();
    let last = bent.len() - 1;
    bent[last] ^= 1;
    fs::write(&file, bent).unwrap();
    let mut refused = vec![];
    for known in &known {
        refused.extend(opened.tensor(&name(known)).await.err());
    }
    let [error] = &*refused else {
        panic!("{refused:?}")
    };
    let named = file.display().to_string();
    assert!(error.to_string().contains(&named), "{error}");
}

/// SEMANTICS 102: other cuts have the same tensors, blobs and readers, and the old one stays.
#[tokio::test]
async fn a_checkpoint_that_is_cut_anew_loads_as_before() {
    let from = Storage::memory();
    let known = tensors(1);
    for saved in save(&mut ends(&from, 3, small()), &known, &flat(&known, 3), 1).await {
        saved.unwrap();
    }
    let to = Storage::memory();
    let cuts = [
        Cuts::Flat(1),
        Cuts::Flat(5),
        Cuts::Mesh(mesh! { dp: 2, pp: 1, tp: 2 }),
        Cuts::Mesh(mesh! { dp: 1, pp: 1, tp: 1 }),
    ];
    for cuts in cuts {
        let entry = reshard(&from, Which::Latest, &to, cuts, &small())
            .await
            .unwrap();
        assert_eq!(entry.step, 1);
        let whole = alone(&known);
        let loaded = load(&mut ends(&to, 1, small()), &whole, Which::Latest).await;
        expect_same(&known, &whole, loaded);
        assert!(verify::verify(&to, Which::Latest).await.unwrap().is_sound());
    }
    let two_stages = Cuts::Mesh(mesh! { dp: 1, pp: 2, tp: 1 });
    let said = reshard(&from, Which::Latest, &to, two_stages, &small())
        .await
        .unwrap_err()
        .to_string();
    assert!(
        said.contains("cannot be cut: 1 layers cannot be spread over 2 stages"),
        "{said}"
    );
    assert!(
        verify::verify(&from, Which::Latest)
            .await
            .unwrap()
            .is_sound()
    );
}

const CONFIG: &str = r#"{
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 16,
  "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
  "num_key_value_heads": 2, "head_dim": 4, "vocab_size": 60, "rms_norm_eps": 1e-5,
  "rope_theta": 10000.0, "max_position_embeddings": 64, "tie_word_embeddings": false,
  "hidden_act": "silu", "attention_bias": false, "torch_dtype": "float32"
}"#;

/// A model of [`CONFIG`] with numbers that are small.
fn llama() -> Vec<Known> {
    let spec = odeon_algorithms::parallel::Llama {
        layers: 2,
        hidden: 16,
        intermediate: 40,
        block: odeon_algorithms::model::LayerBlock::default(),
        heads: 4,
        kv_heads: 2,
        head_width: 4,
        vocabulary: 60,
        element_bytes: 4,
        tied: false,
        qkv_bias: false,
        out_bias: false,
        mlp_bias: false,
        head_norms: false,
        value_head: false,
    };
    let spec = spec.spec().unwrap();
    let tensors = spec.tensors().iter().enumerate();
    tensors
        .map(|(at, tensor)| {
            let mut known = Known::new(&tensor.name, Dtype::F32, &tensor.shape, at as u64);
            let numbers = known
                .bytes
                .chunks(4)
                .map(|bytes| f32::from(bytes[0]) / 256.0 - 0.5);
            known.bytes = numbers.flat_map(f32::to_le_bytes).collect();
            known
        })
        .collect()
}

async fn saved_llama(storage: &Storage) -> Vec<Known> {
    let known = llama();
    let locals = flat(&known, 2);
    let saves = ends(storage, 2, small())
        .into_iter()
        .zip(locals)
        .enumerate();
    let saves = saves.map(|(rank, (mut end, local))| {
        let source = reference(&known, &local);
        async move {
            let config = (rank == 0).then(|| ("hf/config.json".to_owned(), Bytes::from(CONFIG)));
            let save = Save {
                step: 1,
                local,
                blobs: config.into_iter().collect(),
                ..Save::default()
            };
            end.save(save, &source).await.unwrap().wait().await.unwrap();
        }
    });
    future::join_all(saves).await;
    known
}

/// SEMANTICS 102: an exported folder is what Hugging Face's format says, in one file or several.
#[tokio::test]
async fn an_exported_folder_loads_with_its_numbers() {
    let storage = Storage::memory();
    let known = saved_llama(&storage).await;
    let folder = tempfile::tempdir().unwrap();
    for (name, file_bytes, dtype) in [
        ("one", usize::MAX, None),
        ("many", 5000, None),
        ("half", 5000, Some(Dtype::BF16)),
    ] {
        let target = folder.path().join(name);
        let options = Export {
            file_bytes,
            dtype,
            ..Export::default()
        };
        let exported = export(&storage, Which::Latest, &target, &options)
            .await
            .unwrap();
        assert_eq!(
            exported.files.len() > 3,
            name != "one",
            "{:?}",
            exported.files
        );
        let model = load_directory(&target).unwrap();
        assert_eq!(model.tensors.len(), known.len());
        for known in &known {
            let values = &model.tensors[&known.name].values;
            let expected = known.bytes.chunks(4);
            let expected = expected.map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()));
            // Multiples of 1/256 below one are exact in both.
            assert!(values.iter().copied().eq(expected), "{}", known.name);
        }
        let again = export(&storage, Which::Latest, &target, &options)
            .await
            .unwrap_err();
        assert!(matches!(again, ExportError::Exists { .. }), "{again}");
    }
    let reward = Export {
        role: "reward".into(),
        ..Export::default()
    };
    let error = export(&storage, Which::Latest, &folder.path().join("x"), &reward)
        .await
        .unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("no model of role `reward`; it has: actor"),
        "{error}"
    );
}

/// SEMANTICS 102.
#[tokio::test]
async fn an_export_that_fails_in_the_middle_leaves_nothing() {
    let storage = Storage::memory();
    saved_llama(&storage).await;
    let (entry, manifest) = commit::find(&storage, Which::Latest).await.unwrap();
    // The files before it are read, and written.
    let file = entry.file(&manifest.files.last().unwrap().name);
    let mut bytes = storage.get(&file).await.unwrap().to_vec();
    let at = bytes.len() - 1;
    bytes[at] ^= 1;
    storage.put(&file, &[bytes.into()]).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let options = Export {
        file_bytes: 5000,
        ..Export::default()
    };
    let target = folder.path().join("model");
    let exported = export(&storage, Which::Latest, &target, &options).await;
    let said = exported.unwrap_err().to_string();
    assert!(said.contains(&file), "{said}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn a_model_without_its_configuration_is_not_exported() {
    let storage = Storage::memory();
    let known = llama();
    for saved in save(&mut ends(&storage, 1, small()), &known, &alone(&known), 1).await {
        saved.unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("model");
    let error = export(&storage, Which::Latest, &target, &Export::default())
        .await
        .unwrap_err();
    assert!(matches!(error, ExportError::NoConfig { .. }), "{error}");
    assert!(!target.exists());
    let config = folder.path().join("config.json");
    fs::write(&config, CONFIG).unwrap();
    let options = Export {
        files: vec![config],
        ..Export::default()
    };
    export(&storage, Which::Latest, &target, &options)
        .await
        .unwrap();
    load_directory(&target).unwrap();
}

/// Loads a folder, and prints the sum of a parameter and whether the model computes.
const TRANSFORMERS: &str = r#"
import sys, torch, transformers
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], torch_dtype="auto")
weight = model.state_dict()["model.layers.1.mlp.down_proj.weight"]
logits = model(torch.tensor([[1, 2, 3]])).logits
print(weight.double().sum().item(), bool(torch.isfinite(logits).all()))
"#;

/// SEMANTICS 102: with Hugging Face's own library.
#[tokio::test]
async fn transformers_loads_an_exported_folder() {
    let python = std::env::var("ODEON_PYTHON").unwrap_or_else(|_| "python3".into());
    let there = Command::new(&python)
        .args(["-c", "import torch, transformers"])
        .output();
    if !there.is_ok_and(|output| output.status.success()) {
        let why =
            format!("{python} has no torch and transformers (ODEON_PYTHON names one that does)");
        return skip(Need::Torch, why);
    }
    let storage = Storage::memory();
    let known = saved_llama(&storage).await;
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("model");
    let options = Export {
        file_bytes: 5000,
        ..Export::default()
    };
    export(&storage, Which::Latest, &target, &options)
        .await
        .unwrap();
    let output = Command::new(&python)
        .arg("-c")
        .arg(TRANSFORMERS)
        .arg(&target)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    let weight = known
        .iter()
        .find(|known| known.name == "model.layers.1.mlp.down_proj.weight");
    let numbers = weight.unwrap().bytes.chunks(4);
    let sum: f64 = numbers
        .map(|bytes| f64::from(f32::from_le_bytes(bytes.try_into().unwrap())))
        .sum();
    let last = said.trim().lines().last().unwrap_or_default();
    assert_eq!(last, format!("{sum:?} True"), "{errors}");
}
