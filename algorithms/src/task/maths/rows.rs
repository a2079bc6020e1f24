//! Problems in a file.

use std::path::Path;

use serde::Deserialize;

use super::{
    super::{
        draw,
        error::TaskError,
        problem::{Goal, Problem},
    },
    ReferenceAnswer, final_answer, judge,
};

#[derive(Deserialize)]
struct Row {
    problem: Option<String>,
    question: Option<String>,
    prompt: Option<String>,
    answer: Option<Written>,
    solution: Option<String>,
}

/// An answer as text or as a number.
#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Text(String),
    Number(serde_json::Number),
}

/// Reads all problems. Their numbers within a split are left at 0.
pub(super) fn read(path: &Path) -> Result<Vec<Problem>, TaskError> {
    let text = std::fs::read_to_string(path).map_err(|source| TaskError::Read {
        path: path.into(),
        source,
    })?;
    let mut problems = Vec::new();
    let mut faults = Vec::new();
    for (line, row) in text
        .lines()
        .enumerate()
        .filter(|(_, row)| !row.trim().is_empty())
    {
        match parse_row(row) {
            Ok(problem) => problems.push(problem),
            Err(detail) => faults.push((line + 1, detail)),
        }
    }
    let Some((line, mut detail)) = faults.first().cloned() else {
        return Ok(problems);
    };
    if faults.len() > 1 {
        detail.push_str(&format!(
            " ({} more lines cannot be used either)",
            faults.len() - 1
        ));
    }
    Err(TaskError::Line {
        path: path.into(),
        line,
        detail,
    })
}

pub(super) fn parse_row(row: &str) -> Result<Problem, String> {
    let row: Row = serde_json::from_str(row).map_err(|error| error.to_string())?;
    let asked = row.problem.or(row.question).or(row.prompt);
    let asked = asked.ok_or("there is no `problem`, `question` or `prompt`")?;
    let solution = row.solution.unwrap_or_default();
    let answer = match &row.answer {
        Some(Written::Text(text)) if text.contains("\\boxed") || text.contains("####") => {
            final_answer(text).map(str::to_owned)
        }
        Some(Written::Text(text)) => Some(text.clone()),
        Some(Written::Number(number)) => Some(number.to_string()),
        None if solution.contains("\\boxed") => final_answer(&solution).map(str::to_owned),
        None => None,
    };
    let answer = answer.ok_or("there is no `answer`, and no `\\boxed{}` in a `solution`")?;
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
