# The programs of the databases: found on this machine, or installed. Sourced by scripts/db after servers.sh. Each find_...
# sets the array `server`; `dir` is a folder to write an installation's log to.

find_mariadb() {
  export PATH=$PATH:/usr/sbin:/sbin
  local program
  for program in mariadbd mariadb-install-db my_print_defaults; do
    command -v $program >/dev/null || { install_packages mariadb-server-core mariadb-client-core; break; }
  done
  server=(mariadbd)
}

is_recent_mysql() {
  local version
  version=$("$1" --version 2>/dev/null) || return 1
  [[ $version != *MariaDB* && $version =~ Ver\ ([0-9]+)\.([0-9]+) ]] &&
    [ $((BASH_REMATCH[1] * 100 + BASH_REMATCH[2])) -ge 804 ]
}

find_mysql() {
  export PATH=$PATH:/usr/sbin:/sbin
  local own=${HALFMQ_MYSQLD:-$(command -v mysqld || true)} tree=$cache/mysql-root
  if [ -n "$own" ] && is_recent_mysql "$own"; then server=("$own"); return; fi
  [ -z "${HALFMQ_MYSQLD:-}" ] || die "HALFMQ_MYSQLD=$own is not a MySQL server of version 8.4 or later"
  (lock 8 "$cache/mysql-root.lock"; [ -d "$tree" ] || unpack_mysql "$tree")
  # Its own loader and libraries, so that it runs outside the tree and as any user.
  server=("$tree"/usr/lib/*/ld-linux-*.so.*)
  server+=(--library-path "$(dirname "${server[0]}")" "$tree/usr/sbin/mysqld")
}

# Clients, which the tests of backups use: mariadb-dump, mariadb-binlog, mysqldump, mysqlbinlog, and mariadb and mysql. And
# mysqlrouter, a proxy.
run_program() { # its name, and its arguments
  local program=$1 tree=$cache/mysql-root server=()
  shift
  if [ "$kind" = mariadb ]; then
    command -v mariadb-binlog >/dev/null || install_packages mariadb-client >&2
    exec "$program" "$@"
  fi
  find_mysql
  [ ${#server[@]} -gt 1 ] || exec "$program" "$@" # a server of the machine's own, and its programs
  if [ "$program" = mysqlrouter ]; then
    need_in_mysql_tree mysqlrouter mysql-router
    # It would look for its libraries and plugins where they are when it is installed.
    server[2]+=:$tree/usr/lib/mysql-router
    set -- --DEFAULT.plugin_folder="$tree/usr/lib/mysqlrouter/plugin" "$@"
  else
    need_mysql_clients
  fi
  exec "${server[@]:0:3}" "$tree/usr/bin/$program" "$@"
}

need_mysql_clients() { need_in_mysql_tree mysqldump mysql-client-core; }

# In a tree that was unpacked without it. A list that is too old for apt is good enough to install from.
need_in_mysql_tree() { # program, package
  local tree=$cache/mysql-root
  [ -x "$tree/usr/bin/$1" ] || (lock 8 "$cache/mysql-root.lock"; [ -x "$tree/usr/bin/$1" ] || add_to_mysql_tree "$2")
}

add_to_mysql_tree() { # package
  need_root "$1"
  local get=("${as_root[@]}" chroot "$tree" apt-get -qq -o Acquire::Check-Valid-Until=false)
  mkdir -p "$dir"
  # One that was ended before may have left packages half installed.
  quietly "${as_root[@]}" chroot "$tree" dpkg --configure -a
  quietly "${get[@]}" update
  quietly env DEBIAN_FRONTEND=noninteractive "${get[@]}" install --yes --no-install-recommends "$1"
  forget_packages "$tree"
}

find_postgresql() {
  compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null || install_postgresql
  local programs=(/usr/lib/postgresql/*/bin)
  export PATH=${programs[-1]}:$PATH
  server=(postgres)
  # It refuses to run as root.
  [ "$(id -u)" != 0 ] || as_user=(setpriv --reuid=postgres --regid=postgres --init-groups env HOME=/tmp)
}

install_postgresql() {
  # Without a cluster of the system's own.
  mkdir -p /etc/postgresql-common 2>/dev/null || need_root postgresql
  "${as_root[@]}" sh -c 'mkdir -p /etc/postgresql-common && echo "create_main_cluster = false" >>/etc/postgresql-common/createcluster.conf'
  install_packages postgresql
}

unpack_mysql() {
  need_root MySQL
  command -v debootstrap >/dev/null || install_packages debootstrap debian-archive-keyring
  say "unpacking MySQL from Debian sid into $1 (once, about a minute, 600 MB)"
  local partial=$1.partial
  "${as_root[@]}" rm -rf "$partial"
  quietly "${as_root[@]}" debootstrap --variant=minbase --include=mysql-server-core,mysql-client-core sid "$partial"
  forget_packages "$partial"
  "${as_root[@]}" mv "$partial" "$1"
}

forget_packages() { "${as_root[@]}" rm -rf "$1"/var/cache/apt/{archives,*.bin} "$1"/var/lib/apt/lists; } # tree

# --- data directories and servers of MariaDB and MySQL --------------------------------------------------------------

initialise() { # statements to begin with, a file in `dir`
  say "making a data directory for $kind in $dir"
  rm -rf "$dir/data.new"
  if [ "$family" = mariadb ]; then
    # Relative paths: the program does not take one with a space.
    (cd "$dir" && quietly mariadb-install-db --no-defaults --skip-test-db --auth-root-authentication-method=normal \
      "${user[@]}" --datadir=./data.new ${1:+"--extra-file=./$1"})
  elif [ "$family" = postgresql ]; then
    mkdir "$dir/data.new"
    [ ${#as_user[@]} = 0 ] || chown postgres "$dir/data.new"
    reachable
    echo halfmq >"$dir/password" && chmod 644 "$dir/password"
    (cd / && quietly "${as_user[@]}" initdb --pgdata="$dir/data.new" --username=halfmq --pwfile="$dir/password" \
      --auth=scram-sha-256 --encoding=UTF8 --locale=C.UTF-8)
  else
    quietly "${server[@]}" --no-defaults --initialize-insecure "${user[@]}" --datadir="$dir/data.new" \
      ${1:+"--init-file=$dir/$1"}
  fi
  mv "$dir/data.new" "$dir/data"
}

# Adds to the array `options`. Durability is left as shipped: every commit is flushed (innodb_flush_log_at_trx_commit=1,
# MySQL also sync_binlog=1).
server_options() { # size of the buffers, and of the redo log
  # A folder of its own for temporary tables: MariaDB deletes at its start what it finds there, also another server's.
  options+=(--no-defaults "${user[@]}" --datadir="$dir/data" --tmpdir="$dir/tmp"
    --socket=server.sock --pid-file=server.pid --skip-name-resolve --max-connections=300 --max-connect-errors=1000000
    --character-set-server=utf8mb4 --innodb-buffer-pool-size="$1")
  if [ "$family" = mariadb ]; then
    options+=(--innodb-log-file-size="$1")
  else
    options+=(--innodb-redo-log-capacity="$1" --mysqlx=OFF --secure-file-priv=)
  fi
}

launch_server() { # a command to run it by
  mkdir -p "$dir/tmp"
  rm -f "$dir"/data/server.sock* # left by a killed server
  local preload=(${HALFMQ_DB_PRELOAD:+env "LD_PRELOAD=$HALFMQ_DB_PRELOAD"})
  setsid nohup "$@" "${preload[@]}" "${server[@]}" "${options[@]}" </dev/null >"$dir/log" 2>&1 8>&- 9>&- &
  note_pid $!
}
