//! Files of an environment that name the folder of the job in which it was made: they would break when that goes, for
//! all jobs that share it.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Bytes at the front of a script in which its interpreter is named; a long path is in the second line.
const FRONT_BYTES: u64 = 1 << 10;
/// The name of modules that find packages where these lie begins so, as setuptools writes them.
const EDITABLE: &str = "__editable__";
/// Bytes of a file with paths of packages.
const PATHS_BYTES: u64 = 64 << 10;

/// Checks that neither a script of an environment nor its paths of packages lead to the folder of a job.
///
/// # Errors
/// Which does, and what to do, in words.
pub(super) fn no_file_of_it_names(place: &Path, work: &Path) -> Result<(), String> {
    let real = fs::canonicalize(work).unwrap_or_else(|_| work.to_owned());
    let folders: Vec<Vec<u8>> = [work, &real].map(with_slash).into();
    let names = |text: &[u8]| {
        let has = |folder: &Vec<u8>| text.windows(folder.len()).any(|it| it == folder);
        folders.iter().any(has)
    };
    let is_script_of_it = |path: &PathBuf| {
        let front = front_of(path, FRONT_BYTES).unwrap_or_default();
        front.starts_with(b"#!") && names(first_lines(&front))
    };
    let leads_to_it = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        let leads = |name: &str| name.ends_with(".pth") || name.starts_with(EDITABLE);
        name.is_some_and(leads) && names(&front_of(path, PATHS_BYTES).unwrap_or_default())
    };
    let short = |path: &Path| {
        path.strip_prefix(place)
            .unwrap_or(path)
            .display()
            .to_string()
    };
    let scripts = entries(&place.join("bin"));
    if let Some(script) = scripts.iter().find(|it| is_script_of_it(it)) {
        return Err(format!(
            "its environment cannot be used: `{}` in it begins with a path of the job's folder, which goes with the \
             job. An environment does not work once it was moved: have the command make it in $ODEON_ENVIRONMENT, as \
             `python3 -m venv \"$ODEON_ENVIRONMENT\"` does, and uv with UV_PROJECT_ENVIRONMENT=\"$ODEON_ENVIRONMENT\"",
            short(script)
        ));
    }
    let libraries = entries(&place.join("lib"));
    let packages = libraries.iter().map(|it| it.join("site-packages"));
    let mut paths = packages.flat_map(|it| entries(&it));
    match paths.find(leads_to_it) {
        Some(path) => Err(format!(
            "its environment cannot be used: `{}` in it leads to a package in the job's folder, which goes with the \
             job. Install it without -e (uv: with --no-editable, or --no-install-project)",
            short(&path)
        )),
        None => Ok(()),
    }
}

/// A folder as it stands in front of what is in it.
fn with_slash(folder: &Path) -> Vec<u8> {
    let mut bytes = folder.as_os_str().as_encoded_bytes().to_vec();
    bytes.push(b'/');
    bytes
}

/// The plain files and folders in a folder, in order; none where there is no such folder.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries
        .filter(|entry| entry.file_type().is_ok_and(|it| !it.is_symlink()))
        .map(|entry| entry.path())
        .collect();
    paths.sort_unstable();
    paths
}

fn front_of(path: &Path, bytes: u64) -> io::Result<Vec<u8>> {
    let mut front = vec![];
    File::open(path)?.take(bytes).read_to_end(&mut front)?;
    Ok(front)
}

/// Where pip writes a script whose interpreter has a long path, the second line starts that.
fn first_lines(script: &[u8]) -> &[u8] {
    let ends = script.iter().enumerate().filter(|(_, it)| **it == b'\n');
    let second = ends.map(|(at, _)| at).nth(1);
    &script[..second.unwrap_or(script.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SEMANTICS 191.
    #[test]
    fn an_environment_that_leads_to_the_folder_of_a_job_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (place, work) = (dir.path().join("e"), dir.path().join("jobs/j3.1"));
        let packages = place.join("lib/python3.11/site-packages");
        fs::create_dir_all(place.join("bin")).unwrap();
        fs::create_dir_all(&packages).unwrap();
        fs::create_dir_all(&work).unwrap();
        let script =
            |name: &str, text: String| fs::write(place.join("bin").join(name), text).unwrap();
        let said = || no_file_of_it_names(&place, &work);
        let of = |folder: &Path| format!("#!{}/.venv/bin/python3\nprint(1)\n", folder.display());
        script("own", of(&place));
        script("later", format!("#!/bin/sh\n\necho {}/x\n", work.display()));
        script("other", of(&dir.path().join("jobs/j3.10")));
        fs::write(packages.join("a.pth"), "/usr/lib/x\n").unwrap();
        assert_eq!(said(), Ok(()));
        script("pip", of(&work));
        assert!(said().unwrap_err().contains("`bin/pip`"), "{:?}", said());
        let long = "#!/bin/sh\n'''exec' ";
        script(
            "pip",
            format!("{long}{}/bin/python3 \"$0\"\n", work.display()),
        );
        assert!(said().unwrap_err().contains("`bin/pip`"), "{:?}", said());
        fs::remove_file(place.join("bin/pip")).unwrap();
        fs::write(packages.join("b.pth"), format!("{}/pkg\n", work.display())).unwrap();
        assert!(said().unwrap_err().contains("b.pth"), "{:?}", said());
        let finder = "__editable___x_1_0_finder.py";
        fs::rename(packages.join("b.pth"), packages.join(finder)).unwrap();
        assert!(said().unwrap_err().contains(finder), "{:?}", said());
        // As the kernel names it, who has entered it by a link.
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&work, &link).unwrap();
        assert!(no_file_of_it_names(&place, &link).is_err());
    }
}
