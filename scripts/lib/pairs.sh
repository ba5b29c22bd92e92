# mysql-pair and mariadb-pair: a source and a replica, with semi-synchronous replication.
