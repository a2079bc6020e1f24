//! Sound of every kind beside libsndfile, features beside Whisper's, and bytes that are no sound.

use std::fs;
use std::panic::catch_unwind;

use odeon_media::{
    Bound, MediaError, SoundFormat, SoundLimits, WhisperFeatures, decode_sound, probe_sound,
};
use proptest::prelude::*;

use crate::extracts::{arrays, path};

fn sound(name: &str) -> Vec<u8> {
    fs::read(path("sounds").join(name)).unwrap()
}

fn sounds() -> Vec<String> {
    let entries = fs::read_dir(path("sounds")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

// SEMANTICS 226.
#[test]
fn sounds_are_as_libsndfile_decodes_them() {
    let expected = arrays("sounds", 4);
    assert_eq!(sounds().len(), expected.len());
    for (name, expect) in &expected {
        let bytes = sound(name);
        let info = probe_sound(&bytes).unwrap();
        let told = |key: &str| expect.more[key].as_u64().unwrap();
        assert_eq!(u64::from(info.channels), told("channels"), "{name}");
        // libsndfile gives Opus at the rate that it was made of.
        let rate = told("rate") as u32;
        let made = decode_sound(&bytes, rate, &SoundLimits::default()).unwrap();
        assert_eq!(made.samples.len() as u64, told("samples"), "{name}");
        let every = told("every") as usize;
        let made = made.samples.iter().step_by(every);
        let pairs = made.zip(expect.floats());
        let (mut most, mut noise, mut power) = (0.0_f64, 0.0, 0.0);
        for (made, expect) in pairs {
            let (made, expect) = (f64::from(*made), f64::from(expect));
            most = most.max((made - expect).abs());
            noise += (made - expect).powi(2);
            power += expect.powi(2);
        }
        let below = 10.0 * (power / noise.max(1e-30)).log10();
        let (may, least) = match info.format {
            SoundFormat::Wav | SoundFormat::Flac => (1e-6, 120.0),
            SoundFormat::Mp3 => (1e-5, 110.0),
            // In whole numbers of 16 bits.
            _ => (1e-3, 70.0),
        };
        assert!(
            most <= may && below >= least,
            "{name}: {most} at most, {below} dB"
        );
    }
}

// SEMANTICS 227.
#[test]
fn features_are_those_of_whisper() {
    let extract = arrays("mel", 4);
    let speech = decode_sound(&sound("speech.wav"), 16_000, &SoundLimits::default()).unwrap();
    for name in ["speech", "sweep", "soft", "click", "silence"] {
        let samples = match extract.get(name) {
            Some(samples) => samples.floats(),
            None => speech.samples.clone(),
        };
        for bins in [80, 128] {
            let expect = &extract[&format!("{name}/{bins}")];
            let made = WhisperFeatures::new(bins).unwrap().of_30_seconds(&samples);
            assert_eq!((made.bins, made.frames), (bins, 3000));
            let mut most = 0.0_f32;
            let rows = made.numbers.chunks_exact(3000);
            for (row, expect) in rows.zip(expect.floats().chunks_exact(expect.shape[1])) {
                for (made, expect) in row.iter().step_by(4).zip(expect) {
                    most = most.max((made - expect).abs());
                }
            }
            assert!(most < 1e-4, "{name} {bins}: {most}");
        }
    }
}

// SEMANTICS 226.
#[test]
fn what_is_too_long_is_refused_before_it_is_decoded() {
    let hour = fs::read(path("hour.flac")).unwrap();
    let info = probe_sound(&hour).unwrap();
    assert_eq!(
        (info.format, info.samples),
        (SoundFormat::Flac, 3600 * 8000)
    );
    let refused = decode_sound(&hour, 16_000, &SoundLimits::default()).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the FLAC has 3600 seconds, and the limit is 1800: raise `seconds_max`, or make it smaller"
    );
    let limits = SoundLimits {
        seconds_max: 4000,
        bytes_max: 100 << 20,
    };
    let refused = decode_sound(&hour, 16_000, &limits).unwrap_err();
    assert!(
        matches!(
            refused,
            MediaError::TooLarge {
                bound: Bound::Bytes,
                ..
            }
        ),
        "{refused}"
    );
    assert!(decode_sound(&hour, 100, &limits).is_err());
}

// SEMANTICS 226.
#[test]
fn sound_that_is_cut_off_is_refused_where_its_format_tells() {
    for name in sounds() {
        let whole = sound(&name);
        // The layers of MPEG have no end: what is whole of a cut file is heard, unless its first frame counts all.
        let told = !name.ends_with(".mp3");
        for part in 0..40 {
            let length = whole.len() * part / 40;
            let cut = decode_sound(&whole[..length], 16_000, &SoundLimits::default());
            assert!(
                cut.is_err() || !told,
                "{name} cut at {length} of {}",
                whole.len()
            );
        }
    }
}

// SEMANTICS 226.
#[test]
fn what_a_reader_would_keep_or_look_for_is_refused() {
    let said = |bytes: &[u8]| probe_sound(bytes).unwrap_err().to_string();
    let opus = sound("speech.opus");
    assert_eq!(
        said(&[&opus[..], &opus].concat()),
        "the Opus has several streams, which is not read: keep the one of sound alone"
    );
    // A page in which another may be hidden.
    let mut damaged = opus.clone();
    let last = damaged.len() - 1;
    damaged[last] ^= 1;
    assert!(said(&damaged).contains("a page of it is damaged"));
    let mut other = opus.clone();
    other[4] = 1;
    assert!(said(&other).contains("a page of it is damaged"));
    // Samples that its reader would take for chunks, for the description says that it goes on into them.
    let mut law = sound("tones-ulaw.wav");
    assert_eq!(law[12..20], *b"fmt \x12\0\0\0");
    law[36] = 200;
    assert!(said(&law).contains("no length of the format's"));
    // The end of a FLAC's headers is missing, or what its stream is.
    let flac = sound("speech.flac");
    assert!(said(&flac[..50]).contains("it is cut off"));
    let twice = [&flac[..4], &[0], &flac[5..42], &flac[4..]].concat();
    assert!(said(&twice).contains("there twice"));
    assert!(said(b"fLaC\x84\0\0\0").contains("is missing"));
    // A frame that is damaged, or none at all.
    let mut damaged = flac.clone();
    damaged[flac.len() / 2] ^= 1;
    assert!(said(&damaged).contains("a frame has no end"));
    assert!(said(&[&flac[..], b"more"].concat()).contains("its last frame is damaged"));
}

#[test]
fn what_is_no_sound_is_named() {
    let said = |bytes: &[u8]| probe_sound(bytes).unwrap_err().to_string();
    assert_eq!(
        said(b""),
        "this is no WAV, FLAC, MP3 or Opus: it has no bytes"
    );
    assert!(said(b"\x89PNG\r\n\x1a\n").ends_with("it is PNG, a picture"));
    assert!(said(b"\0\0\0\x18ftypM4A \0\0").contains("AAC in MP4"));
    let vorbis = said(b"OggS\0\x02");
    assert!(vorbis.starts_with("the Opus is broken"), "{vorbis}");
    let limits = SoundLimits::default();
    let rate = decode_sound(&sound("speech.wav"), 1, &limits).unwrap_err();
    assert!(
        rate.to_string()
            .starts_with("the rate of samples is 1, and must be")
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    // SEMANTICS 226.
    #[test]
    fn damaged_sound_never_panics(
        which: prop::sample::Index, at in prop::collection::vec((any::<u32>(), any::<u8>()), 1..12), cut: Option<u16>, early: bool,
    ) {
        let names = sounds();
        let name: &String = which.get(&names);
        let mut file = sound(name);
        if let Some(cut) = cut {
            let length = file.len();
            file.truncate(usize::from(cut) % length);
        }
        let length = file.len().max(1);
        for (at, byte) in at {
            // Headers are the most interesting.
            let at = at as usize % if early { length.min(150) } else { length };
            if let Some(place) = file.get_mut(at) {
                *place = byte;
            }
        }
        let read = catch_unwind(|| decode_sound(&file, 16_000, &SoundLimits::default()));
        let _ = read.expect("no bytes panic");
    }

    // SEMANTICS 226.
    #[test]
    fn any_bytes_of_sound_never_panic(
        start in prop::sample::select(vec![
            &b""[..], b"RIFF\xff\0\0\0WAVEfmt ", b"fLaC\0\0\0\x22", b"OggS\0\x02", b"\xff\xfb\x90\0", b"ID3\x04\0\0\0\0\0\x05",
        ]),
        rest in prop::collection::vec(any::<u8>(), 0..600),
    ) {
        let mut file = start.to_vec();
        file.extend(rest);
        let read = catch_unwind(|| decode_sound(&file, 16_000, &SoundLimits::default()));
        let _ = read.expect("no bytes panic");
    }
}
