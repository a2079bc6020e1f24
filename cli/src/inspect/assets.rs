//! The files of the pages, in the binary. Nothing is built: what lies in `cli/ui` is what is served.

use std::path::PathBuf;
use std::sync::OnceLock;

use axum::Router;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use odeon_artifacts::Digest;

/// One file.
#[derive(Debug)]
struct Asset {
    path: &'static str,
    bytes: &'static [u8],
}

macro_rules! assets {
    ($($path:literal,)*) => {
        &[$(Asset {
            path: $path,
            bytes: include_bytes!(concat!("../../ui/", $path)),
        }),*]
    };
}

/// Every file that is served, by its path.
const ASSETS: &[Asset] = assets![
    "api.js",
    "app.js",
    "delta.js",
    "drawer/actor.js",
    "drawer/detail.js",
    "drawer/device.js",
    "drawer/drawer.js",
    "drawer/job.js",
    "drawer/node.js",
    "drawer/process.js",
    "drawer/span.js",
    "drawer/title.js",
    "drawer/transfer.js",
    "filter.js",
    "format.js",
    "frame.js",
    "global.js",
    "help.js",
    "index.html",
    "keys.js",
    "locked.js",
    "offline/answers.js",
    "offline/boot.js",
    "offline/lanes.js",
    "page/actors.js",
    "page/cluster.js",
    "page/events.js",
    "page/jobs.js",
    "page/now.js",
    "page/problems.js",
    "page/runs.js",
    "page/timeline.js",
    "page/transfers.js",
    "palette.js",
    "prefs.js",
    "route.js",
    "sse.js",
    "store.js",
    "stream.js",
    "style/base.css",
    "style/layout.css",
    "style/mesh.css",
    "style/parts.css",
    "style/theme.css",
    "style/timeline.css",
    "style/views.css",
    "subsequence.js",
    "timeline/draw.js",
    "timeline/flows.js",
    "timeline/gutter.js",
    "timeline/lanes.js",
    "timeline/load.js",
    "timeline/lod.js",
    "timeline/paint.js",
    "timeline/panel.js",
    "timeline/ruler.js",
    "timeline/scene.js",
    "timeline/select.js",
    "timeline/timeline.js",
    "timeline/trace.js",
    "timeline/waterfall.js",
    "timeline/window.js",
    "vendor/preact.js",
    "vendor/uplot.css",
    "vendor/uplot.js",
    "view/actorrow.js",
    "view/board.js",
    "view/chart.js",
    "view/dialog.js",
    "view/eventline.js",
    "view/figures.js",
    "view/filterbox.js",
    "view/glyph.js",
    "view/jobs.js",
    "view/links.js",
    "view/logs.js",
    "view/machines.js",
    "view/memory.js",
    "view/mesh.js",
    "view/nodes.js",
    "view/order.js",
    "view/part.js",
    "view/pipeline.js",
    "view/processes.js",
    "view/rollouts.js",
    "view/spans.js",
    "view/spark.js",
    "view/states.js",
    "view/table.js",
    "view/tree.js",
    "waits.js",
];

/// The page that all others are parts of.
const SHELL: &str = "index.html";
/// A folder to serve in place of the files in the binary, for whoever works on them.
const FOLDER_VARIABLE: &str = "ODEON_UI_DIR";
/// Scripts, styles and data come from here alone, nothing is inline, and no other page may show this
/// one inside of it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self' data:; font-src 'self'; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'";

/// The pages, at `/`.
pub(super) fn router<S: Clone + Send + Sync + 'static>() -> Router<S> {
    let shell = Router::new().route("/", get(async |headers: HeaderMap| serve(SHELL, &headers)));
    ASSETS.iter().fold(shell, |router, asset| {
        let path = asset.path;
        router.route(
            &format!("/{path}"),
            get(async move |headers: HeaderMap| serve(path, &headers)),
        )
    })
}

fn folder() -> Option<&'static PathBuf> {
    static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();
    FOLDER
        .get_or_init(|| std::env::var_os(FOLDER_VARIABLE).map(PathBuf::from))
        .as_ref()
}

/// The paths of all files.
pub(super) fn paths() -> impl Iterator<Item = &'static str> {
    ASSETS.iter().map(|asset| asset.path)
}

/// The text of a file, if there is one.
pub(super) fn text(path: &str) -> Option<String> {
    let asset = ASSETS.iter().find(|asset| asset.path == path)?;
    String::from_utf8(bytes_of(asset)).ok()
}

fn bytes_of(asset: &Asset) -> Vec<u8> {
    // Only what is in the table: no path leads out of the folder.
    match folder() {
        Some(folder) => {
            std::fs::read(folder.join(asset.path)).unwrap_or_else(|_| asset.bytes.to_vec())
        }
        None => asset.bytes.to_vec(),
    }
}

fn serve(path: &str, headers: &HeaderMap) -> Response {
    let Some(asset) = ASSETS.iter().find(|asset| asset.path == path) else {
        return (StatusCode::NOT_FOUND, "there is no such file").into_response();
    };
    let bytes = bytes_of(asset);
    let tag = format!("\"{}\"", &Digest::of(&bytes).to_string()[..16]);
    let known = headers.get(header::IF_NONE_MATCH);
    let fresh = known.is_some_and(|known| known.as_bytes() == tag.as_bytes());
    let mut response = match fresh {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => bytes.into_response(),
    };
    let headers = response.headers_mut();
    let mut set = |name: HeaderName, value: &str| {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(name, value);
        }
    };
    set(header::CONTENT_TYPE, type_of(asset.path));
    set(header::ETAG, &tag);
    set(header::CACHE_CONTROL, "no-cache");
    set(header::CONTENT_SECURITY_POLICY, POLICY);
    set(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    set(header::REFERRER_POLICY, "no-referrer");
    response
}

fn type_of(path: &str) -> &'static str {
    match path.rsplit('.').next() {
        Some("html") => "text/html; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "text/javascript; charset=utf-8",
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Bytes of all files that are served.
    const BYTES_MAX: usize = 424 << 10;

    fn files(folder: &Path, under: &str, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let name = entry.file_name().into_string().unwrap();
            let path = format!("{under}{name}");
            if entry.file_type().unwrap().is_dir() {
                if path != "test" {
                    files(&entry.path(), &format!("{path}/"), found);
                }
            } else if [".js", ".css", ".html", ".svg"]
                .iter()
                .any(|it| name.ends_with(it))
            {
                found.push(path);
            }
        }
    }

    #[test]
    fn every_file_is_served_and_together_they_are_small() {
        let mut found = vec![];
        files(
            Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/ui")),
            "",
            &mut found,
        );
        found.sort();
        let served: Vec<_> = ASSETS.iter().map(|asset| asset.path).collect();
        assert_eq!(
            served, found,
            "list the files of cli/ui in cli/src/inspect/assets.rs"
        );
        let bytes: usize = ASSETS.iter().map(|asset| asset.bytes.len()).sum();
        assert!(bytes <= BYTES_MAX, "{bytes} bytes");
    }

    #[test]
    fn names_of_users_never_become_markup() {
        for asset in ASSETS
            .iter()
            .filter(|asset| !asset.path.starts_with("vendor/"))
        {
            let text = std::str::from_utf8(asset.bytes).unwrap();
            for word in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
            ] {
                assert!(!text.contains(word), "{}: {word}", asset.path);
            }
        }
    }

    #[test]
    fn what_is_not_in_the_table_is_not_served() {
        let none = HeaderMap::new();
        for path in ["../Cargo.toml", "test/run.mjs", "vendor/LICENSES", ""] {
            assert_eq!(serve(path, &none).status(), StatusCode::NOT_FOUND, "{path}");
        }
        let shell = serve(SHELL, &none);
        assert_eq!(shell.headers()[header::CONTENT_SECURITY_POLICY], POLICY);
        let mut again = HeaderMap::new();
        again.insert(header::IF_NONE_MATCH, shell.headers()[header::ETAG].clone());
        assert_eq!(serve(SHELL, &again).status(), StatusCode::NOT_MODIFIED);
    }
}
