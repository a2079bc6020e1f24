//! The format as it is on disk: a checkpoint that an earlier release wrote, and what this one writes.

use std::fs;
use std::path::Path;

use odeon_algorithms::parallel::{Region, Span};
use odeon_checkpoint::manifest::{
    Blob, FORMAT, File, MANIFEST, Manifest, ManifestError, Piece, Tensor,
};
use odeon_checkpoint::stage::{Stage, StageTime};
use odeon_checkpoint::{Dtype, MODEL};

fn manifest() -> Manifest {
    let span = |offset, length| Span { offset, length };
    let tensor = Tensor {
        dtype: Dtype::BF16,
        shape: vec![3, 2],
        pieces: vec![
            Piece {
                region: Region::new(vec![span(0, 1), span(0, 2)]),
                file: 0,
                start: 96,
                crcs: vec![1],
            },
            Piece {
                region: Region::new(vec![span(1, 2), span(0, 2)]),
                file: 0,
                start: 100,
                crcs: vec![u32::MAX],
            },
        ],
    };
    let tensors = [("w".to_owned(), tensor)].into();
    Manifest {
        sequence: 12,
        step: 400,
        ranks: 2,
        block_bytes: 16,
        files: vec![File {
            name: "rank-00000-000.safetensors".into(),
            bytes: 108,
            header_bytes: 96,
            header_crc: 7,
        }],
        roles: [("actor".to_owned(), [(MODEL.to_owned(), tensors)].into())].into(),
        loaders: [("train".to_owned(), 1)].into(),
        blobs: [(
            "loader/train/0".to_owned(),
            Blob {
                file: "rank-00000-000.blob".into(),
                bytes: 17,
                crcs: vec![3, 4],
            },
        )]
        .into(),
        stages: vec![StageTime {
            rank: 0,
            stage: Stage::Upload,
            bytes: 108,
            seconds: 0.25,
        }],
    }
}

/// SEMANTICS 94: the manifest is this file; another format has another number.
#[test]
fn the_manifest_is_as_it_was() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(MANIFEST);
    if std::env::var_os("ODEON_BLESS").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, manifest().encode()).unwrap();
    }
    let golden = fs::read(&path).unwrap();
    assert_eq!(
        String::from_utf8_lossy(&golden),
        String::from_utf8_lossy(&manifest().encode())
    );
    assert_eq!(Manifest::decode(&golden, MANIFEST).unwrap(), manifest());
}

#[test]
fn what_is_no_manifest_of_ours_says_so() {
    let decode = |bytes: &[u8]| Manifest::decode(bytes, "place/manifest.json").unwrap_err();
    let bytes = manifest().encode();
    let text = String::from_utf8(bytes.clone()).unwrap();
    let newer = text.replacen("\"version\":1", "\"version\":2", 1);
    assert_eq!(
        decode(newer.as_bytes()).to_string(),
        format!(
            "place/manifest.json at byte 0: format 2 is newer than {FORMAT}, which this release reads"
        )
    );
    assert!(matches!(decode(b"{}\n"), ManifestError::Foreign { .. }));
    assert!(matches!(decode(b""), ManifestError::Foreign { .. }));
    let cut = decode(&bytes[..bytes.len() - 1]).to_string();
    assert!(
        cut.contains(&format!("at byte {}: ends here", bytes.len() - 1)),
        "{cut}"
    );
    // Numbers that mean nothing, in a file that is whole.
    let mut piece = manifest();
    piece
        .roles
        .get_mut("actor")
        .unwrap()
        .get_mut(MODEL)
        .unwrap()
        .get_mut("w")
        .unwrap()
        .pieces[1]
        .start = 101;
    let said = decode(&piece.encode()).to_string();
    assert_eq!(
        said,
        "place/manifest.json: tensor `actor/model/w` cannot have its box [1:3, 0:2] there"
    );
    let mut outside = manifest();
    outside.files[0].name = "../elsewhere".into();
    assert!(
        decode(&outside.encode())
            .to_string()
            .contains("`../elsewhere` is no name")
    );
}
