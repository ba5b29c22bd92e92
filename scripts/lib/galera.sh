# mariadb-cluster: Galera.
