//! Command lines and shell scripts between this process and a program.

/// New namespaces of every kind that a program could look through. Ended, it ends the first
/// process.
pub(super) const UNSHARE: &str = "unshare --user --map-root-user --mount --pid --fork \
                                  --kill-child=KILL --net --ipc --uts --";
/// As much, in the words of bubblewrap.
pub(super) const BWRAP: &str = "bwrap --unshare-user --disable-userns --unshare-pid \
                                --unshare-net --unshare-ipc --unshare-uts --hostname sandbox \
                                --die-with-parent --cap-drop ALL";
/// Takes all rights away, and the ways to any.
pub(super) const DROP: &str = "setpriv --no-new-privs --bounding-set=-all --inh-caps=-all --";

/// Closes what this process has passed on: files that were opened by others need not close when a
/// program is executed. Only bash can name those above 9.
pub(super) const CLOSE: &str = r#"
if [ -n "$BASH_VERSION" ]; then
  for open in /proc/self/fd/*; do
    open=${open##*/}
    if [ "$open" -gt 2 ]; then eval "exec $open>&-"; fi
  done
else
  exec 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-
fi
"#;

/// The first process of the new namespaces. What only hardens may fail: a container may show
/// `/proc` read-only. The link from `/proc` to the old root is for `umount`, and leads nowhere
/// after it.
pub(super) const SET_UP: &str = r#"
read -r go || exit 125
set -e
{ echo 0 > /proc/sys/user/max_user_namespaces; } 2> /dev/null || :
{ echo 0 > /proc/sys/kernel/shmall; } 2> /dev/null || :
mount -a -T "$1/mounts"
cp -R "$2/." "$1/root/work"
cd "$1/root"
pivot_root . old
umount -l /old
cd /work
unset OLDPWD
shift 2
set +e
exec 3>&2 2> /dev/null
"$@" 2>&3 3>&-
exit $?"#;

/// When the line never comes, since whoever should write it is gone, nothing is begun.
pub(super) const GATE: &str = r#"read -r go || exit 125; exec "$@""#;

/// So that the program's parent is not this process. What the shell says of its end is not the
/// program's.
pub(super) const GATE_AND_WAIT: &str = r#"
read -r go || exit 125
exec 3>&2 2> /dev/null
"$@" 2>&3 3>&-
exit $?"#;

/// Says that the program begins, within all limits.
pub(super) const BEGIN: &str = r#"
command -v "$1" > /dev/null || { echo "there is no program $1" >&2; exit 125; }
echo "odeon: the program begins" >&2
exec "$@""#;

/// The line of [`BEGIN`]. Before it nothing foreign runs, so nothing can forge it.
pub(super) const BEGUN: &[u8] = b"odeon: the program begins\n";
