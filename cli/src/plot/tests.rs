//! Tests of what is drawn, and that ticks are nice.

use proptest::prelude::*;

use super::axis::{Fit, nice_step, plain};
use super::lines::thinned;
use super::svg::escaped;
use super::*;

fn throughput() -> Lines {
    let x = Axis::new("GPUs").doubling();
    let y = Axis::new("Throughput").unit("tokens/s");
    Lines::new("Qwen2.5-7B", x, y)
        .line(Line::new(
            "synchronous",
            [(16.0, 9e3), (32.0, 15e3), (64.0, 21e3)],
        ))
        .line(Line::new(
            "per trajectory",
            [(16.0, 1e4), (32.0, 2.1e4), (64.0, 4.4e4)],
        ))
}

/// Element names in their order, with how often each follows itself.
fn elements(svg: &str) -> String {
    let names = svg.lines().filter_map(|line| {
        let name = line.strip_prefix('<')?;
        let end = name.find([' ', '>'])?;
        let class = name
            .split("class=\"")
            .nth(1)
            .and_then(|rest| rest.split('"').next());
        Some(match class {
            Some(class) => format!("{}.{}", &name[..end], class.replace(' ', ".")),
            None => name[..end].to_owned(),
        })
    });
    let names: Vec<String> = names.collect();
    let runs = names.chunk_by(|one, next| one == next);
    let told = runs.map(|run| match run.len() {
        1 => run[0].clone(),
        count => format!("{} x{count}", run[0]),
    });
    told.collect::<Vec<_>>().join("\n")
}

/// Every element that is opened is closed, in the right order, and nothing else is markup.
fn is_well_formed(svg: &str) -> Result<(), String> {
    let mut open: Vec<&str> = vec![];
    let mut rest = svg;
    while let Some(at) = rest.find('<') {
        let (text, tag) = rest.split_at(at);
        if text.contains('>') {
            return Err(format!("a bare > in {text:?}"));
        }
        let end = tag.find('>').ok_or("a tag without an end")?;
        let inside = &tag[1..end];
        let name = |text: &'_ str| text.find(' ').unwrap_or(text.len());
        if let Some(closed) = inside.strip_prefix('/') {
            if open.pop() != Some(closed) {
                return Err(format!("{closed} closes something else"));
            }
        } else if !inside.ends_with('/') {
            open.push(&inside[..name(inside)]);
        }
        if inside.matches('"').count() % 2 != 0 {
            return Err(format!("quotes in <{inside}>"));
        }
        rest = &tag[end + 1..];
    }
    match open.is_empty() {
        true => Ok(()),
        false => Err(format!("{open:?} are open")),
    }
}

#[test]
fn lines_have_this_structure() {
    let svg = side_by_side(&[Figure::from(throughput())]);
    is_well_formed(&svg).unwrap();
    assert_eq!(
        elements(&svg),
        "svg\ntitle\nstyle\nrect.paper\ng\ntext.title\n\
         path.s.s0\ncircle.mark.f0\ntext.name\npath.s.s1\npath.mark.f1\ntext.name\ntext.label\n\
         path.grid\ntext.tick\npath.grid\ntext.tick\npath.grid\ntext.tick\npath.grid\ntext.tick\n\
         path.grid\ntext.tick\npath.grid\ntext.tick\n\
         path.axis x2\ntext.tick\npath.axis\ntext.tick\npath.axis\ntext.tick\ntext.label\n\
         path.s.s0\ncircle.mark.f0 x3\npath.s.s1\npath.mark.f1 x3\n/g\n/svg"
    );
    for text in [
        "Throughput (tokens/s)",
        ">GPUs<",
        ">50k<",
        ">64<",
        "<title>per trajectory: 44k tokens/s at 64</title>",
    ] {
        assert!(svg.contains(text), "{text}\n{svg}");
    }
}

#[test]
fn bars_have_this_structure() {
    let bars = Bars::new(
        "Speed",
        "model",
        Axis::new("Speed-up").unit("x"),
        ["7B", "32B"],
    )
    .series("off", [1.0, 1.0])
    .series("on", [1.26, f64::NAN])
    .spread([(1.2, 1.3), (0.0, 0.0)]);
    let svg = side_by_side(&[Figure::from(bars)]);
    is_well_formed(&svg).unwrap();
    let drawn = elements(&svg);
    let bars = drawn.find("rect.f0").unwrap();
    assert_eq!(
        &drawn[bars..],
        "rect.f0\ntext.value\nrect.f0\ntext.value\n\
         rect.f1\npath.whisker x3\ntext.value\n\
         path.axis x2\ntext.tick\npath.axis\ntext.tick\ntext.label\n/g\n/svg"
    );
    assert!(svg.contains("<title>on, 7B: 1.26 x</title>"), "{svg}");
}

#[test]
fn a_band_goes_there_and_back() {
    let runs = [vec![0.1, 0.3], vec![0.4, 0.2], vec![f64::NAN, 0.5], vec![]];
    let runs = (0..).map(f64::from).zip(runs.iter().map(Vec::as_slice));
    let axes = [Axis::new("step"), Axis::new("accuracy").within(0.0, 1.0)];
    let [x, y] = axes;
    let svg = side_by_side(&[Figure::from(
        Lines::new("Held out", x, y).line(Line::spread("GRPO", runs)),
    )]);
    let band = svg
        .lines()
        .find(|line| line.contains("class=\"band f0\""))
        .unwrap();
    // Three points have values: three below, three above.
    assert_eq!(band.matches('L').count(), 5, "{band}");
    assert!(svg.contains("<title>GRPO: 0.3 at 1</title>"), "{svg}");
}

#[test]
fn many_points_become_few_and_keep_their_extremes() {
    let points = |spike: u32| -> Vec<[f64; 2]> {
        let height = |at| if at == spike { 40.0 } else { 200.0 };
        (0..100_000)
            .map(|at| [f64::from(at) * 0.005, height(at)])
            .collect()
    };
    for spike in [0, 54_321, 99_999] {
        let kept = thinned(&points(spike));
        assert!(kept.len() <= 4 * 500, "{}", kept.len());
        assert!(kept.iter().any(|point| point[1] == 40.0), "{spike}");
        assert!(kept.windows(2).all(|pair| pair[0][0] < pair[1][0]));
    }
    assert_eq!(thinned(&points(0)[..900]).len(), 900);
}

#[test]
fn no_number_interrupts_a_line() {
    let points = [
        (0.0, 1.0),
        (1.0, 2.0),
        (2.0, f64::NAN),
        (3.0, 1.0),
        (4.0, 2.0),
    ];
    let lines = Lines::new("a", Axis::new("x"), Axis::new("y"));
    let svg = side_by_side(&[Figure::from(lines.line(Line::new("b", points)))]);
    let path = svg
        .lines()
        .find(|line| line.contains("class=\"s s0\""))
        .unwrap();
    assert_eq!(path.matches('M').count(), 2, "{path}");
    assert!(!svg.contains("NaN"), "{svg}");
}

#[test]
fn nothing_is_a_figure_too() {
    let lines = Lines::new("empty", Axis::new("x"), Axis::new("y").doubling());
    let bars = Bars::new("empty", "x", Axis::new("y"), Vec::<String>::new());
    for figure in [Figure::from(lines), Figure::from(bars)] {
        let svg = side_by_side(std::slice::from_ref(&figure));
        is_well_formed(&svg).unwrap();
        assert!(
            svg.contains("no data") && !svg.contains("NaN") && !svg.contains("inf"),
            "{svg}"
        );
    }
    is_well_formed(&side_by_side(&[])).unwrap();
}

#[test]
fn panels_stand_side_by_side() {
    let panels = [Figure::from(throughput()), Figure::from(throughput())];
    let svg = side_by_side(&panels);
    is_well_formed(&svg).unwrap();
    assert!(svg.contains("width=\"1200\" height=\"400\""));
    assert!(svg.contains("translate(0 0)") && svg.contains("translate(600 0)"));
    assert_eq!(svg.matches("<style>").count(), 1);
}

#[test]
fn names_are_text() {
    assert_eq!(
        escaped("<a href=\"x\">&'\u{1}"),
        "&lt;a href=&quot;x&quot;&gt;&amp;&#39;\u{fffd}"
    );
}

#[test]
fn numbers_read_well() {
    for (value, text) in [
        (0.0, "0"),
        (0.123_456, "0.123"),
        (0.000_123_4, "0.000123"),
        (1.5, "1.5"),
        (1234.0, "1234"),
        (9_999.6, "10k"),
        (44_000.0, "44k"),
        (12_345_678.0, "12.3M"),
        (-2.5, "-2.5"),
        (999.96, "1000"),
    ] {
        assert_eq!(plain(value), text, "{value}");
    }
}

#[test]
fn ticks_read_well() {
    let of = |fit, from: f64, to: f64| -> String {
        let span = Axis::new("y").span(fit, [from, to].into_iter());
        let labels: Vec<String> = span.ticks.into_iter().map(|(_, label)| label).collect();
        labels.join(" ")
    };
    assert_eq!(of(Fit::Round, 0.3, 0.87), "0 0.2 0.4 0.6 0.8 1.0");
    assert_eq!(of(Fit::Round, 9_000.0, 44_000.0), "0 10k 20k 30k 40k 50k");
    assert_eq!(of(Fit::Round, -3.0, 4.0), "-4 -2 0 2 4");
    assert_eq!(of(Fit::Data, 0.0, 600.0), "0 100 200 300 400 500 600");
    assert_eq!(of(Fit::Round, 0.0, 0.0), "0 0.2 0.4 0.6 0.8 1.0");
    assert_eq!(of(Fit::Round, 0.0, 12.0), "0 2 4 6 8 10 12");
    let doubling = Axis::new("x")
        .doubling()
        .span(Fit::Data, [64.0, 1024.0].into_iter());
    let labels: Vec<&str> = doubling
        .ticks
        .iter()
        .map(|(_, label)| label.as_str())
        .collect();
    assert_eq!(labels, ["64", "128", "256", "512", "1024"]);
    assert!((doubling.at(256.0) - 0.5).abs() < 1e-9);
}

proptest! {
    #[test]
    fn ticks_are_round_even_and_around_the_data(
        from in prop_oneof![-1e12f64..1e12, -1.0f64..1.0, Just(0.0)],
        magnitude in -5.0f64..6.0,
    ) {
        // Sizes that numbers of 64 bits can tell apart.
        let size = from.abs().max(1e-3) * 10f64.powf(magnitude);
        let to = from + size;
        for (fit, least) in [(Fit::Round, 3), (Fit::Data, 2)] {
            let span = Axis::new("y").span(fit, [from, to].into_iter());
            let ticks = &span.ticks;
            prop_assert!((least..=9).contains(&ticks.len()), "{ticks:?}");
            let step = ticks[1].0 - ticks[0].0;
            for pair in ticks.windows(2) {
                prop_assert!((pair[1].0 - pair[0].0 - step).abs() < step * 1e-3);
            }
            prop_assert!((nice_step(step * 0.999) / step - 1.0).abs() < 2e-3, "{step}");
            let places = ticks.iter().map(|(value, _)| span.at(*value));
            prop_assert!(places.clone().all(|place| (0.0..=1.0).contains(&place)));
            if matches!(fit, Fit::Round) {
                prop_assert!(ticks[0].0 <= from + step * 1e-3);
                prop_assert!(ticks[ticks.len() - 1].0 >= to - step * 1e-3);
                prop_assert!(ticks[0].0 <= 0.0 || ticks[ticks.len() - 1].0 >= 0.0);
            }
            let mut labels: Vec<&String> = ticks.iter().map(|(_, label)| label).collect();
            labels.dedup();
            prop_assert_eq!(labels.len(), ticks.len(), "{:?}", ticks);
        }
    }

    #[test]
    fn any_names_and_numbers_make_sound_text(
        title in ".{0,40}",
        names in prop::collection::vec(".{0,30}", 0..6),
        values in prop::collection::vec(prop::num::f64::ANY, 0..30),
        group in ".{0,10}",
    ) {
        let axis = || Axis::new(title.clone()).unit(group.clone());
        let mut lines = Lines::new(title.clone(), axis().doubling(), axis());
        let mut bars = Bars::new(title.clone(), group.clone(), axis(), names.clone());
        for name in &names {
            let points = values.iter().zip(values.iter().rev()).map(|(x, y)| (*x, *y));
            lines = lines.line(Line::new(name.clone(), points));
            bars = bars.series(name.clone(), values.iter().copied());
        }
        let svg = side_by_side(&[lines.into(), bars.into()]);
        is_well_formed(&svg).map_err(TestCaseError::fail)?;
        prop_assert!(!svg.contains("NaN") && !svg.contains("\"inf"), "{}", svg);
    }
}
