//! `odeon top`: looking on in a terminal.

use std::io::{IsTerminal, stdin, stdout};
use std::process::ExitCode;

use anyhow::{Result, bail};
use odeon_client::Update;

use super::watched::Watched;
use crate::args::TopArgs;
use crate::print;
use crate::top::model::{Event, Model};
use crate::top::{draw, terminal};
use crate::waiter::Waiter;

/// Columns of a page that goes elsewhere than to a terminal.
const COLUMNS: u16 = 160;

pub(crate) fn run(args: &TopArgs) -> Result<ExitCode> {
    if !args.filter.is_empty() && !args.page.is_filtered() {
        bail!(
            "the page `{}` has no filter: take --page actors or --page events",
            args.page
        );
    }
    let watched = Watched::of(&args.look)?;
    let inspector = watched.inspector()?;
    let runtime = Waiter::alone()?;
    let mut model = Model::new(args.page, &args.filter, terminal::now());
    if args.once {
        let page = runtime.block_on(inspector.page(&model.asked()));
        let page = page.map_err(|error| watched.why_not(error))?;
        if args.json {
            print::line(serde_json::to_string(&page)?)?;
            return Ok(ExitCode::SUCCESS);
        }
        model.apply(Event::Told(0, Update::Whole(Box::new(page))));
        print::line(draw::text(
            &model,
            print::room().map_or(COLUMNS, |it| it as u16),
        ))?;
        return Ok(ExitCode::SUCCESS);
    }
    if !stdin().is_terminal() || !stdout().is_terminal() {
        bail!(
            "`odeon top` draws on a terminal, and this is none: `odeon ps --json` and \
             `odeon top --once --json` are for programs"
        );
    }
    // What cannot be reached at all is said before the screen is taken.
    let reached = runtime.block_on(inspector.about());
    reached.map_err(|error| watched.why_not(error))?;
    print::hush();
    let code = runtime.block_on(terminal::look_on(watched, model))?;
    Ok(ExitCode::from(code))
}
