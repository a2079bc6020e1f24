//! `odeon fetch`: a pinned model or data set by name, its hash checked.

use anyhow::{Context, Result};
use odeon_algorithms::fetch;

use super::model;
use crate::args::FetchArgs;
use crate::print;

pub(crate) fn run(args: &FetchArgs) -> Result<()> {
    let Some(name) = &args.name else {
        let rows: Vec<Vec<String>> = fetch::ARTEFACTS
            .iter()
            .map(|artefact| vec![artefact.name.to_owned(), artefact.file.to_owned()])
            .collect();
        return Ok(print::table(&["name", "file"], &rows)?);
    };
    let artefact = fetch::Artefact::named(name).with_context(|| {
        let names: Vec<&str> = fetch::ARTEFACTS
            .iter()
            .map(|artefact| artefact.name)
            .collect();
        format!("unknown name `{name}`; there are {}", names.join(", "))
    })?;
    let models = model::models();
    if artefact.find(&models).is_none() {
        print::say(format!(
            "getting {} from {} {} (licence {})",
            artefact.file, artefact.package, artefact.version, artefact.licence
        ));
    }
    let path = fetch::fetch(&artefact, &models)?;
    Ok(print::line(path.display())?)
}
