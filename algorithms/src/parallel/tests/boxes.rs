//! Boxes, and copying them.

use super::*;

fn region(spans: &[(usize, usize)]) -> Region {
    let spans = spans
        .iter()
        .map(|&(offset, length)| Span { offset, length });
    Region::new(spans.collect())
}

/// A shape and two boxes in it.
fn boxes() -> impl Strategy<Value = (Vec<usize>, Region, Region)> {
    shapes().prop_flat_map(|shape| (Just(shape.clone()), region_in(&shape), region_in(&shape)))
}

fn shapes() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(1..6_usize, 0..5)
}

fn region_in(shape: &[usize]) -> impl Strategy<Value = Region> + use<> {
    let span = |&extent: &usize| {
        let offsets = 0..extent;
        offsets.prop_flat_map(move |offset| (Just(offset), 1..=extent - offset))
    };
    let spans: Vec<_> = shape.iter().map(span).collect();
    spans.prop_map(|spans| region(&spans))
}

/// A box of these lengths in some array around it, somewhere in a buffer.
fn windows(lengths: Vec<usize>, element_bytes: usize) -> impl Strategy<Value = Window> {
    let around = prop::collection::vec((0..3_usize, 0..3_usize), lengths.len());
    (around, 0..5_usize).prop_map(move |(around, start)| {
        let pairs = around.iter().zip(&lengths);
        let shape = pairs
            .clone()
            .map(|((before, after), length)| before + length + after);
        let spans: Vec<_> = pairs
            .map(|((before, _), &length)| (*before, length))
            .collect();
        Window::new(start, element_bytes, shape.collect(), region(&spans)).unwrap()
    })
}

fn pairs_of_windows() -> impl Strategy<Value = (Window, Window)> {
    let lengths = prop::collection::vec(0..4_usize, 0..5);
    (lengths, 1..4_usize).prop_flat_map(|(lengths, bytes)| {
        (windows(lengths.clone(), bytes), windows(lengths, bytes))
    })
}

/// The bytes of a window in its buffer, one by one.
fn naive_bytes(window: &Window) -> Vec<usize> {
    let place = |index: Vec<usize>| place(&index, window.shape());
    let width = window.element_bytes();
    let starts = indices(window.region()).into_iter().map(place);
    starts
        .flat_map(|element| (0..width).map(move |byte| element * width + byte))
        .map(|byte| window.start_bytes() + byte)
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn what_two_boxes_share_and_the_rest_make_up_the_first((_, a, b) in boxes()) {
        let common = a.intersection(&b);
        let mut pieces = common.as_ref().map_or_else(|| vec![a.clone()], |inner| a.without(inner));
        prop_assert!(pieces.len() <= 2 * a.spans().len().max(1));
        let common: Vec<_> = common.iter().flat_map(indices).collect();
        let (of_a, of_b) = (indices(&a), indices(&b));
        let both: Vec<_> = of_a.iter().filter(|index| of_b.contains(index)).cloned().collect();
        prop_assert_eq!(&common, &both);
        pieces.sort();
        let mut all: Vec<_> = pieces.iter().flat_map(indices).chain(common).collect();
        all.sort();
        prop_assert_eq!(all, of_a);
    }

    /// ByteCheckpoint's decomposition: once each, in order, in few boxes.
    #[test]
    fn flat_ranges_are_a_few_boxes_in_order(shape in shapes(), ends in any::<[u16; 2]>()) {
        let elements: usize = shape.iter().product();
        let [a, b] = ends.map(|at| usize::from(at) % (elements + 1));
        let range = a.min(b)..a.max(b);
        let boxes = Region::of_flat(range.clone(), &shape);
        prop_assert!(boxes.len() < 2 * shape.len().max(1));
        prop_assert!(boxes.iter().all(|region| region.is_in(&shape)));
        let covered: Vec<_> =
            boxes.iter().flat_map(indices).map(|index| place(&index, &shape)).collect();
        prop_assert_eq!(covered, range.collect::<Vec<_>>());
    }

    #[test]
    fn copies_are_those_of_a_loop_over_elements((from, to) in pairs_of_windows()) {
        let source: Vec<u8> = (0..from.end_bytes()).map(|at| number(0, at, 0)).collect();
        let (mut copied, mut expected) = (vec![0xaa; to.end_bytes()], vec![0xaa; to.end_bytes()]);
        let (reads, writes) = (naive_bytes(&from), naive_bytes(&to));
        for (&read, &write) in reads.iter().zip(&writes) {
            expected[write] = source[read];
        }
        copy_box(&source, &from, &mut copied, &to).unwrap();
        prop_assert_eq!(copied, expected);

        // Runs are as long as both buffers allow.
        let pairs: Vec<_> = reads.iter().zip(&writes).collect();
        let next = |pair: &[(&usize, &usize)]| {
            *pair[0].0 + 1 == *pair[1].0 && *pair[0].1 + 1 == *pair[1].1
        };
        let breaks = pairs.windows(2).filter(|pair| !next(pair)).count();
        let runs: Vec<ByteRun> = from.runs_into(&to).unwrap().collect();
        prop_assert_eq!(runs.len(), if pairs.is_empty() { 0 } else { breaks + 1 });
        prop_assert_eq!(runs.iter().map(|run| run.bytes).sum::<usize>(), to.bytes());
    }

    #[test]
    fn ranges_are_the_bytes_of_a_box_merged((window, _) in pairs_of_windows()) {
        let ranges: Vec<_> = window.ranges().collect();
        prop_assert!(ranges.windows(2).all(|pair| pair[0].end < pair[1].start), "{:?}", ranges);
        let bytes: Vec<usize> = ranges.into_iter().flatten().collect();
        prop_assert_eq!(bytes, naive_bytes(&window));
    }
}

#[test]
fn a_cut_range_of_a_small_matrix_is_the_papers() {
    let boxes = Region::of_flat(0..3, &[3, 2]);
    assert_eq!(
        boxes,
        [region(&[(0, 1), (0, 2)]), region(&[(1, 1), (0, 1)])]
    );
    let shown: Vec<_> = boxes.iter().map(Region::to_string).collect();
    assert_eq!(shown, ["[0:1, 0:2]", "[1:2, 0:1]"]);
    assert_eq!(Region::of_flat(0..1, &[]), [region(&[])]);
}

#[test]
fn rows_are_one_range_and_columns_many() {
    let ranges = |spans: &[(usize, usize)]| {
        let window = Window::new(100, 2, vec![4, 6], region(spans)).unwrap();
        let ranges = window.ranges().map(|range| (range.start, range.end));
        ranges.collect::<Vec<_>>()
    };
    assert_eq!(ranges(&[(1, 2), (0, 6)]), [(112, 136)]);
    assert_eq!(ranges(&[(0, 4), (0, 6)]), [(100, 148)]);
    assert_eq!(ranges(&[(3, 1), (2, 2)]), [(140, 144)]);
    assert_eq!(ranges(&[(1, 2), (4, 2)]), [(120, 124), (132, 136)]);
}

#[test]
fn windows_that_do_not_fit_are_refused() {
    let new = |start, shape: &[usize], spans: &[(usize, usize)]| {
        Window::new(start, 2, shape.to_vec(), region(spans))
    };
    let check = |refused: WindowError, message: &str| assert_eq!(refused.to_string(), message);
    check(
        new(0, &[4], &[(2, 3)]).unwrap_err(),
        "the box [2:5] is not in an array of shape [4]",
    );
    check(
        new(0, &[4], &[]).unwrap_err(),
        "the box [] is not in an array of shape [4]",
    );
    let huge = 1 << 63;
    check(
        new(0, &[huge], &[(0, 1)]).unwrap_err(),
        "an array of shape [9223372036854775808] with 2 bytes an element, from byte 0 on, is \
         larger than memory",
    );
    let (small, large) = (
        new(0, &[4], &[(0, 2)]).unwrap(),
        new(8, &[4], &[(0, 3)]).unwrap(),
    );
    let mut target = [7; 16];
    check(
        copy_box(&[0; 16], &small, &mut target, &large).unwrap_err(),
        "a box of [2] elements of 2 bytes does not fill one of [3] elements of 2 bytes",
    );
    check(
        copy_box(&[0; 15], &large, &mut target, &large).unwrap_err(),
        "the source has 15 bytes, and the array in it ends at 16",
    );
    check(
        copy_box(&[0; 16], &large, &mut target[..9], &large).unwrap_err(),
        "the target has 9 bytes, and the array in it ends at 16",
    );
    assert_eq!(target, [7; 16], "nothing was written");
}

#[test]
fn a_window_that_is_sent_is_checked() {
    let window = Window::new(8, 2, vec![4, 6], region(&[(1, 2), (4, 2)])).unwrap();
    let text = serde_json::to_string(&window).unwrap();
    let region = r#"[{"offset":1,"length":2},{"offset":4,"length":2}]"#;
    let sent = r#"{"start_bytes":8,"element_bytes":2,"shape":[4,6],"region":"#;
    assert_eq!(text, format!("{sent}{region}}}"));
    assert_eq!(serde_json::from_str::<Window>(&text).unwrap(), window);
    let outside = text.replace(r#""offset":4"#, r#""offset":5"#);
    let message = serde_json::from_str::<Window>(&outside)
        .unwrap_err()
        .to_string();
    assert!(
        message.contains("[1:3, 5:7] is not in an array"),
        "{message}"
    );
    let wrapping = text.replace(r#""offset":4"#, r#""offset":18446744073709551615"#);
    assert!(serde_json::from_str::<Window>(&wrapping).is_err());
}
