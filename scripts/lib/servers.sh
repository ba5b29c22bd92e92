# What scripts/db and scripts/kafka share: installing, locks, and the processes of servers. Sourced at the root of the
# checkout. `dir` is the folder of the server that a script is about; its file `pid` has the process and its start time.
cache=${XDG_CACHE_HOME:-$HOME/.cache}/halfmq
as_root=()
[ "$(id -u)" = 0 ] || as_root=(sudo)

say() { echo "scripts/${0##*/}: $*" >&2; }
die() { say "$*"; exit 1; }
usage() { sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" >&2; exit 2; }

# Runs a command quietly; shows the end of its output when it fails.
quietly() {
  "$@" >"$dir/install.log" 2>&1 </dev/null && return
  tail -n 30 "$dir/install.log" >&2
  die "failed: $*"
}

# Waits for a lock on a file, held by the named descriptor (9: this server, 8: this machine) until the script ends or
# closes it. Servers are started without them.
lock() { mkdir -p "$(dirname "$2")" && eval "exec $1>\"\$2\"" && flock "$1"; }

need_root() { [ ${#as_root[@]} = 0 ] || command -v sudo >/dev/null || die "installing $* needs root or sudo"; }

install_packages() {
  need_root "$@"
  command -v apt-get >/dev/null || die "cannot install $*: this is not a Debian or Ubuntu machine. Install it by hand"
  say "installing $*"
  local get=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300)
  quietly "${get[@]}" update
  quietly "${get[@]}" install --yes --no-install-recommends "$@"
}

pid() { cut -d' ' -f1 "$dir/pid"; }
port() { cat "$dir/port"; }
taken() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# State, number of threads and start time of a process.
process() { sed -E 's/.*\) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f1,18,20; }

# Writes down the process that was just started.
note_pid() { echo "$1 $(process "$1" | cut -d' ' -f3)" >"$dir/pid"; }

# True while the server we started runs, to the end of its last thread: only then its ports and its file locks are free.
# A process id used again by another program (it started at another time) or left unreaped (Z) does not count.
alive() {
  local id started state threads since
  read -r id started 2>/dev/null <"$dir/pid" || return 1
  read -r state threads since < <(process "$id") || return 1
  [ "$since" = "$started" ] && ! { [ "$state" = Z ] && [ "$threads" -le 1 ]; }
}

await_exit() { # seconds
  for ((tenths = $1 * 10; tenths > 0; tenths--)); do alive || return 0; sleep 0.1; done
  return 1
}

# Ends the server, if it runs, by a signal that lets it shut down.
stop_server() { # name, signal
  [ -d "$dir" ] || return 0
  lock 9 "$dir/lock"
  alive || return 0
  kill "-$2" "$(pid)"
  await_exit 60 || die "$1 is still running after 60 s; its log is $dir/log"
}

kill_server() { # name
  alive || die "$1 is not running"
  kill -KILL "$(pid)"
  await_exit 10 || die "$1 survived SIGKILL"
}

did_not_start() { # name
  tail -n 30 "$dir/log" >&2
  die "$1 did not start; its log is $dir/log"
}
