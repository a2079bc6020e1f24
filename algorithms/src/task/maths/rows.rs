//! Problems in a file.

use serde_json::{Map, Value};

use super::{
    super::{
        draw,
        problem::{Goal, Problem},
        problem_file::{fields, text},
    },
    ReferenceAnswer, final_answer, judge,
};

/// The problem that a row is. Its number within its split is left at 0.
pub(super) fn parse_row(row: &Map<String, Value>) -> Result<Problem, String> {
    let lacks = |what: &str| format!("there is no {what}; {}", fields(row));
    let mut asked = None;
    for field in ["problem", "question", "prompt"] {
        if asked.is_none() {
            asked = text(row, field)?;
        }
    }
    let asked = asked.ok_or_else(|| lacks("`problem`, `question` or `prompt`"))?;
    let solution = text(row, "solution")?.unwrap_or_default().to_owned();
    let answer = match row.get("answer") {
        Some(Value::Number(number)) => Some(number.to_string()),
        _ => match text(row, "answer")? {
            Some(text) if text.contains("\\boxed") || text.contains("####") => {
                final_answer(text).map(str::to_owned)
            }
            Some(text) => Some(text.to_owned()),
            None if solution.contains("\\boxed") => final_answer(&solution).map(str::to_owned),
            None => None,
        },
    };
    let answer = answer.ok_or_else(|| lacks("`answer`, and no `\\boxed{}` in a `solution`"))?;
    let reference = ReferenceAnswer::parse(&answer).map_err(|error| error.to_string())?;
    let split = draw::split_of(asked.trim());
    let solution = worked(solution, reference.as_str())
        .ok_or_else(|| format!("`{answer}` does not stand a box around it"))?;
    Ok(Problem {
        split,
        index: 0,
        prompt: format!(
            "{asked}\nThink step by step. Put the final answer in \\boxed{{}} at the end."
        ),
        answer: reference.as_str().to_owned(),
        solution,
        goal: Goal::Answer(reference.as_str().to_owned()),
    })
}

/// The solution where the checker takes it for right, else the answer alone.
fn worked(solution: String, reference: &str) -> Option<String> {
    let alone = format!("The answer is \\boxed{{{reference}}}.");
    let mut replies = [solution, alone].into_iter();
    replies.find(|reply| judge(reference, reply, 0.0).correct)
}
