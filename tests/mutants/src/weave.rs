//! A source file with all of its mutants at once, each behind a switch.

use std::collections::BTreeMap;
use std::ops::Range;

use anyhow::{Context, Result};
use proc_macro2::{LineColumn, Span};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Arm, BinOp, Block, Expr, Signature};

use crate::list::{Genre, Mutant};

/// The switch of a mutant, in Rust: true where it is the one that is tried.
fn switch(number: usize) -> String {
    format!("crate::odeon_mutant({number})")
}

/// The number of the last switch in `text`.
pub fn last_switch(text: &str) -> Option<usize> {
    let (_, behind) = text.rsplit_once("odeon_mutant(")?;
    behind.split_once(')')?.0.parse().ok()
}

/// The function that is added to the root of a crate.
pub const SWITCHES: &str = "
/// Returns true for the mutant that is tried.
#[doc(hidden)]
pub(crate) fn odeon_mutant(number: usize) -> bool {
    static TRIED: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    *TRIED.get_or_init(|| std::env::var(\"ODEON_MUTANT\").map_or(0, |it| it.parse().unwrap_or(0))) == number
}
";

/// A place in the source at which there are mutants.
struct Place {
    range: Range<usize>,
    kind: Kind,
    /// Number and replacement of each.
    mutants: Vec<(usize, String)>,
}

enum Kind {
    /// The first statement of a function.
    Body,
    Binary {
        left: Range<usize>,
        operator: String,
        right: Range<usize>,
    },
    Unary {
        operator: String,
        operand: Range<usize>,
    },
    /// The place behind the pattern of an arm without a guard.
    Arm,
    /// The word `const` of a function, which is left out: a switch is not known to the compiler.
    Const,
    Guard,
    /// The value of a field, and the struct that has it where the field is left out.
    Field {
        base: String,
        member: String,
        is_short: bool,
    },
}

/// The file with those of `mutants` that can be woven, each with its number; and the numbers of all others.
/// With `unfix` none of its functions is a constant one.
pub fn weave(
    source: &str,
    mutants: &[(usize, &Mutant)],
    unfix: bool,
) -> Result<(String, Vec<usize>)> {
    let file = syn::parse_file(source).context("not Rust")?;
    let mut wanted: BTreeMap<(usize, usize), Vec<(usize, &Mutant)>> = BTreeMap::new();
    for &(number, mutant) in mutants {
        wanted
            .entry((mutant.span.start.line, mutant.span.start.column))
            .or_default()
            .push((number, mutant));
    }
    let mut finder = Finder {
        source,
        wanted,
        unfix,
        places: Vec::new(),
    };
    finder.visit_file(&file);
    let left_over = finder
        .wanted
        .values()
        .flatten()
        .map(|(number, _)| *number)
        .collect();
    let mut places = finder.places;
    // The outer before the inner, and a body before the expression that it begins with.
    places.sort_by_key(|it| {
        (
            it.range.start,
            !matches!(it.kind, Kind::Body),
            std::cmp::Reverse(it.range.end),
        )
    });
    Ok((render(source, &places, 0..source.len()), left_over))
}

struct Finder<'a> {
    source: &'a str,
    /// By line and column of what is replaced, counted from one.
    wanted: BTreeMap<(usize, usize), Vec<(usize, &'a Mutant)>>,
    unfix: bool,
    places: Vec<Place>,
}

impl Finder<'_> {
    /// The mutants of a genre that begin at `at`.
    fn take(&mut self, at: LineColumn, genre: Genre) -> Vec<(usize, String)> {
        let key = (at.line, at.column + 1);
        let Some(here) = self.wanted.get_mut(&key) else {
            return Vec::new();
        };
        let (taken, kept): (Vec<_>, Vec<_>) = here
            .drain(..)
            .partition(|(_, mutant)| mutant.genre == genre);
        *here = kept;
        taken
            .into_iter()
            .map(|(number, mutant)| (number, mutant.replacement.clone()))
            .collect()
    }

    fn text(&self, span: Span) -> String {
        self.source[span.byte_range()].to_owned()
    }

    fn add(&mut self, range: Range<usize>, kind: Kind, mutants: Vec<(usize, String)>) {
        if !mutants.is_empty() {
            self.places.push(Place {
                range,
                kind,
                mutants,
            });
        }
    }

    /// Has a function be no constant one.
    fn unfix(&mut self, signature: &Signature) {
        if let Some(word) = signature.constness.as_ref().filter(|_| self.unfix) {
            let range = word.span().byte_range();
            self.places.push(Place {
                range,
                kind: Kind::Const,
                mutants: Vec::new(),
            });
        }
    }

    fn body(&mut self, block: &Block) {
        let Some(first) = block.stmts.first() else {
            return;
        };
        let mutants = self.take(first.span().start(), Genre::FnValue);
        let start = first.span().byte_range().start;
        self.add(start..start, Kind::Body, mutants);
    }
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item_fn(&mut self, it: &'ast syn::ItemFn) {
        self.unfix(&it.sig);
        self.body(&it.block);
        visit::visit_item_fn(self, it);
    }

    fn visit_impl_item_fn(&mut self, it: &'ast syn::ImplItemFn) {
        self.unfix(&it.sig);
        self.body(&it.block);
        visit::visit_impl_item_fn(self, it);
    }

    fn visit_trait_item_fn(&mut self, it: &'ast syn::TraitItemFn) {
        if let Some(block) = &it.default {
            self.body(block);
        }
        visit::visit_trait_item_fn(self, it);
    }

    fn visit_expr_binary(&mut self, it: &'ast syn::ExprBinary) {
        let has_let = binds(&it.left) || binds(&it.right);
        // A condition that binds cannot be an operand of another operator: such a mutant does not compile.
        if !has_let {
            let mutants = self.take(it.op.span().start(), Genre::BinaryOperator);
            let kind = Kind::Binary {
                left: it.left.span().byte_range(),
                operator: self.text(it.op.span()),
                right: it.right.span().byte_range(),
            };
            self.add(it.span().byte_range(), kind, mutants);
        }
        visit::visit_expr_binary(self, it);
    }

    fn visit_expr_unary(&mut self, it: &'ast syn::ExprUnary) {
        let mutants = self.take(it.op.span().start(), Genre::UnaryOperator);
        let kind = Kind::Unary {
            operator: self.text(it.op.span()),
            operand: it.expr.span().byte_range(),
        };
        self.add(it.span().byte_range(), kind, mutants);
        visit::visit_expr_unary(self, it);
    }

    fn visit_expr_struct(&mut self, it: &'ast syn::ExprStruct) {
        if let Some(rest) = &it.rest {
            for field in &it.fields {
                let mutants = self.take(field.span().start(), Genre::StructField);
                let base = match self.text(rest.span()).as_str() {
                    "Default::default()" => format!("<{}>::default()", self.text(it.path.span())),
                    base => format!("({base})"),
                };
                let is_short = field.colon_token.is_none();
                let kind = Kind::Field {
                    base,
                    member: self.text(field.member.span()),
                    is_short,
                };
                self.add(field.expr.span().byte_range(), kind, mutants);
            }
        }
        visit::visit_expr_struct(self, it);
    }

    fn visit_arm(&mut self, it: &'ast Arm) {
        match &it.guard {
            None => {
                let mutants = self.take(it.span().start(), Genre::MatchArm);
                let end = it.pat.span().byte_range().end;
                self.add(end..end, Kind::Arm, mutants);
            }
            Some((_, guard)) => {
                let mutants = self.take(guard.span().start(), Genre::MatchArmGuard);
                self.add(guard.span().byte_range(), Kind::Guard, mutants);
            }
        }
        visit::visit_arm(self, it);
    }
}

/// Whether a condition is, or has in its chain, a `let`.
fn binds(condition: &Expr) -> bool {
    match condition {
        Expr::Let(_) => true,
        Expr::Binary(it) if matches!(it.op, BinOp::And(_)) => binds(&it.left) || binds(&it.right),
        _ => false,
    }
}

/// The text of `range`, with the places in it. These are sorted, and lie in one another or apart.
fn render(source: &str, places: &[Place], range: Range<usize>) -> String {
    let mut text = String::new();
    let mut at = range.start;
    for (nth, place) in places.iter().enumerate() {
        let empty = place.range.is_empty();
        if place.range.start < at
            || place.range.end > range.end
            || (!empty && place.range.start >= range.end)
        {
            continue;
        }
        text.push_str(&source[at..place.range.start]);
        text.push_str(&woven(source, &places[nth + 1..], place));
        at = place.range.end;
    }
    text.push_str(&source[at..range.end]);
    text
}

fn woven(source: &str, inner: &[Place], place: &Place) -> String {
    let render = |range: &Range<usize>| render(source, inner, range.clone());
    match &place.kind {
        Kind::Body => {
            let returns = |(number, value): &(usize, String)| {
                let value = if value == "()" {
                    String::new()
                } else {
                    format!(" {value}")
                };
                format!("if {} {{ return{value}; }} ", switch(*number))
            };
            place.mutants.iter().map(returns).collect()
        }
        Kind::Unary { operator, operand } => {
            let (operand, number) = (render(operand), place.mutants[0].0);
            format!(
                "(if {} {{ {operand} }} else {{ {operator}({operand}) }})",
                switch(number)
            )
        }
        Kind::Const => String::new(),
        Kind::Arm => format!(" if !{}", switch(place.mutants[0].0)),
        Kind::Guard => {
            let wrap = |text: String, (number, value): &(usize, String)| match value.as_str() {
                "true" => format!("({} || {text})", switch(*number)),
                _ => format!("(!{} && {text})", switch(*number)),
            };
            let guard = format!("({})", render(&place.range));
            place.mutants.iter().fold(guard, wrap)
        }
        Kind::Field {
            base,
            member,
            is_short,
        } => {
            let value = render(&place.range);
            let name = if *is_short {
                format!("{member}: ")
            } else {
                String::new()
            };
            format!(
                "{name}if {} {{ {base}.{member} }} else {{ {value} }}",
                switch(place.mutants[0].0)
            )
        }
        Kind::Binary {
            left,
            operator,
            right,
        } => binary(&render(left), operator, &render(right), &place.mutants),
    }
}

/// An operation and its mutants. Each operand is evaluated once, where it would be.
fn binary(left: &str, operator: &str, right: &str, mutants: &[(usize, String)]) -> String {
    let choose = |operation: &dyn Fn(&str) -> String| {
        let others = mutants.iter().map(|(number, other)| {
            format!("if {} {{ {} }} else ", switch(*number), operation(other))
        });
        format!(
            "{}{{ {} }}",
            others.collect::<String>(),
            operation(operator)
        )
    };
    match operator {
        "&&" => format!(
            "(if ({left}) != {} {{ {right} }} else {{ {} }})",
            switch(mutants[0].0),
            switch(mutants[0].0)
        ),
        "||" => format!(
            "(if ({left}) == {} {{ {right} }} else {{ !{} }})",
            switch(mutants[0].0),
            switch(mutants[0].0)
        ),
        "==" | "!=" | "<" | "<=" | ">" | ">=" => {
            let chosen = choose(&|operator| format!("*mutant_l {operator} *mutant_r"));
            format!("(match (&({left}), &({right})) {{ (mutant_l, mutant_r) => {chosen} }})")
        }
        _ if operator.len() > 1 && operator.ends_with('=') => {
            format!(
                "{{ {} }}",
                choose(&|operator| format!("{left} {operator} {right};"))
            )
        }
        _ => {
            let chosen = choose(&|operator| format!("mutant_l {operator} mutant_r"));
            format!("(match ({left}, {right}) {{ (mutant_l, mutant_r) => {chosen} }})")
        }
    }
}
