//! A bundle as a file system sees it: folders and files by number, and the pieces of a range. Pure.

use std::collections::BTreeMap;
use std::ops::Range;

use odeon_artifacts::{Bundle, Listing, Piece};

/// The folders and files of a bundle. Numbers begin with [`ROOT`] and never change.
#[derive(Debug)]
pub(crate) struct Tree {
    nodes: Vec<Node>,
}

/// The number of the folder that holds all others.
pub(crate) const ROOT: u64 = 1;

/// A folder or a file, which has a number.
#[derive(Debug)]
pub(crate) enum Node {
    Folder {
        parent: u64,
        entries: BTreeMap<String, u64>,
    },
    File(File),
}

/// A file and where its pieces lie.
#[derive(Debug)]
pub(crate) struct File {
    pub(crate) executable: bool,
    pub(crate) bytes: u64,
    pieces: Vec<Piece>,
    /// Where each piece begins.
    begins: Vec<u64>,
}

/// A part of a piece.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) piece: Piece,
    pub(crate) range: Range<usize>,
}

impl Tree {
    pub(crate) fn of(bundle: &Bundle) -> Self {
        let mut tree = Self {
            nodes: vec![Node::folder(ROOT)],
        };
        for (path, file) in bundle.files() {
            let mut folder = ROOT;
            let mut names = path.split('/').peekable();
            while let Some(name) = names.next() {
                let made = if names.peek().is_some() {
                    Node::folder(folder)
                } else {
                    Node::File(File::new(file.executable, &file.listing))
                };
                folder = tree.enter(folder, name, made);
            }
        }
        tree
    }

    /// The node with this number.
    pub(crate) fn node(&self, number: u64) -> Option<&Node> {
        let index = usize::try_from(number.checked_sub(ROOT)?).ok()?;
        self.nodes.get(index)
    }

    /// The number of what has this name in a folder.
    pub(crate) fn find(&self, folder: u64, name: &str) -> Option<u64> {
        match self.node(folder)? {
            Node::Folder { entries, .. } => entries.get(name).copied(),
            Node::File(_) => None,
        }
    }

    /// The number of what has this name, which is `made` if it is new.
    fn enter(&mut self, folder: u64, name: &str, made: Node) -> u64 {
        let next = self.nodes.len() as u64 + ROOT;
        let index = (folder - ROOT) as usize;
        let Node::Folder { entries, .. } = &mut self.nodes[index] else {
            // No path of a bundle is also a folder of another one.
            return folder;
        };
        let number = *entries.entry(name.to_owned()).or_insert(next);
        if number == next {
            self.nodes.push(made);
        }
        number
    }
}

impl Node {
    const fn folder(parent: u64) -> Self {
        Self::Folder {
            parent,
            entries: BTreeMap::new(),
        }
    }
}

impl File {
    fn new(executable: bool, listing: &Listing) -> Self {
        Self {
            executable,
            bytes: listing.bytes(),
            pieces: listing.pieces().to_vec(),
            begins: listing.ranges().map(|range| range.start).collect(),
        }
    }

    /// The parts of pieces that make up `bytes` from `at` on, as far as the file goes.
    pub(crate) fn parts(&self, at: u64, bytes: u64) -> Vec<Part> {
        let end = at.saturating_add(bytes).min(self.bytes);
        if at >= end {
            return vec![];
        }
        // No piece is empty, so one alone holds the first byte.
        let first = self.begins.partition_point(|begin| *begin <= at) - 1;
        let pieces = self.pieces[first..].iter().zip(&self.begins[first..]);
        let held = pieces.take_while(|(_, begin)| **begin < end);
        let part = |(piece, begin): (&Piece, &u64)| {
            let length = u64::from(piece.bytes);
            let from = at.saturating_sub(*begin) as usize;
            let to = (end - begin).min(length) as usize;
            Part {
                piece: *piece,
                range: from..to,
            }
        };
        held.map(part).collect()
    }
}

#[cfg(test)]
mod tests {
    use odeon_artifacts::{BundleFile, Digest};
    use proptest::prelude::*;

    use super::*;

    fn listing(lengths: &[u32]) -> Listing {
        let pieces = lengths.iter().zip(0_u64..).map(|(bytes, n)| Piece {
            digest: Digest::of(&n.to_le_bytes()),
            bytes: *bytes,
        });
        let bytes = lengths.iter().map(|it| u64::from(*it)).sum();
        Listing::new(Digest::of(b"file"), bytes, pieces.collect()).unwrap()
    }

    #[test]
    fn files_are_found_by_their_path() {
        let paths = ["lib/a", "lib/b/c", "run"];
        let file = |path: &str| {
            let executable = path == "run";
            let listing = listing(&[3, 4]);
            (
                path.to_owned(),
                BundleFile {
                    executable,
                    listing,
                },
            )
        };
        let bundle = Bundle::new("run", paths.map(file)).unwrap();
        let tree = Tree::of(&bundle);
        for path in paths {
            let names = path.split('/');
            let found = names.fold(ROOT, |folder, name| tree.find(folder, name).unwrap());
            let Some(Node::File(file)) = tree.node(found) else {
                panic!("{path} is no file");
            };
            assert_eq!((file.bytes, file.executable), (7, path == "run"));
            assert_eq!(tree.find(found, "x"), None);
        }
        let lib = tree.find(ROOT, "lib").unwrap();
        let inner = tree.find(lib, "b").unwrap();
        assert!(matches!(tree.node(inner), Some(Node::Folder { parent, .. }) if *parent == lib));
        for number in [0, 99, u64::MAX] {
            assert!(tree.node(number).is_none());
            assert_eq!(tree.find(number, "lib"), None);
        }
        assert_eq!(tree.find(ROOT, "a"), None);
    }

    proptest! {
        #[test]
        fn parts_are_the_bytes_that_were_asked_for(
            lengths in prop::collection::vec(1_u32..20, 0..12),
            at in 0_u64..150,
            bytes in 0_u64..150,
        ) {
            let listing = listing(&lengths);
            let file = File::new(false, &listing);
            // Each byte as the piece that it is of, and its place there.
            let whole: Vec<(Piece, usize)> = listing
                .pieces()
                .iter()
                .flat_map(|piece| (0..piece.bytes as usize).map(|n| (*piece, n)))
                .collect();
            let expected: Vec<_> =
                whole.iter().skip(at as usize).take(bytes as usize).copied().collect();
            let parts = file.parts(at, bytes);
            prop_assert!(parts.iter().all(|part| !part.range.is_empty()));
            let given: Vec<_> = parts
                .into_iter()
                .flat_map(|part| part.range.map(move |n| (part.piece, n)))
                .collect();
            prop_assert_eq!(given, expected);
        }
    }
}
