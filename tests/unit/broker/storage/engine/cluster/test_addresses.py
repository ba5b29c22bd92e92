"""URLs of several servers."""

from __future__ import annotations

import pytest

from broker.errors import ConfigurationError
from broker.storage.engine.cluster.addresses import Address, addresses_of, read_url, shown
from broker.storage.engine.connection import parse_url


@pytest.mark.parametrize(
    ("hosts", "addresses"),
    [
        ("db1", [("db1", 3306)]),
        ("db1:3307", [("db1", 3307)]),
        ("db1,db2:3307,db3", [("db1", 3306), ("db2", 3307), ("db3", 3306)]),
        ("[::1]:3306,[fe80::2],10.0.0.3", [("::1", 3306), ("fe80::2", 3306), ("10.0.0.3", 3306)]),
    ],
)
def test_servers_of_a_url_are_separated_by_commas(hosts: str, addresses: list[tuple[str, int]]) -> None:
    url = read_url(f"mysql://halfmq:secret@{hosts}/orders?ssl_ca=ca.pem")
    assert addresses_of(url) == tuple(Address(*each) for each in addresses)
    assert (url.host, url.port or 3306) == addresses[0]
    assert (url.username, url.password, url.database, url.query["ssl_ca"]) == ("halfmq", "secret", "orders", "ca.pem")


def test_the_form_that_sqlalchemy_has_for_them_is_read_as_well() -> None:
    url = read_url("mysql://halfmq@/orders?host=db1:3306&host=db2:3307")
    assert addresses_of(url) == (Address("db1", 3306), Address("db2", 3307))


@pytest.mark.parametrize("password", ["p,w", "p/w", "p%40w:x"])
def test_a_password_may_have_what_separates_servers(password: str) -> None:
    url = read_url(f"mysql://halfmq:{password}@db1,db2/orders")
    assert url.password == password.replace("%40", "@")
    assert len(addresses_of(url)) == 2


def test_a_url_is_shown_with_all_servers_and_without_its_password() -> None:
    url = read_url("mysql+pymysql://halfmq:secret@db1,[::1]:3307/orders?ssl_ca=ca.pem")
    assert shown(url) == "mysql+pymysql://halfmq:***@db1:3306,[::1]:3307/orders?ssl_ca=ca.pem"
    assert shown(read_url("mysql://halfmq:secret@db1/orders")) == "mysql://halfmq:***@db1/orders"


@pytest.mark.parametrize(
    ("hosts", "why"),
    [
        ("db1,", "'' is no host:port"),
        (",db1", "'' is no host:port"),
        ("db1,db2:port", "'db2:port' is no host:port"),
        ("db1,db2:70000", "'db2:70000' is no host:port"),
        ("db1,db1:3306", "a server is named twice"),
        ("db1,DB1", "a server is named twice"),
        ("db1,,db2", "'' is no host:port"),
    ],
)
def test_a_list_that_cannot_be_read_is_refused(hosts: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=f"cannot be read: {why}; .*host1:3306,host2:3306"):
        parse_url(f"mysql://halfmq:secret@{hosts}/orders")


def test_an_at_sign_in_a_password_is_not_read_as_a_server() -> None:
    """The first of the servers would be offered the rest of the password."""
    with pytest.raises(ConfigurationError, match="write an @ in the user's name or password as %40") as refused:
        parse_url("mysql://halfmq:pass@word,too@db1,db2/orders")
    assert "word" not in str(refused.value).replace("password", "")


def test_the_zone_of_an_address_is_read() -> None:
    assert addresses_of(read_url("mysql://u@[fe80::1%25eth0],db2/orders"))[0] == Address("fe80::1%eth0", 3306)


def test_a_socket_of_this_machine_is_none_of_several_servers() -> None:
    """All of them would be the same one: two that accept writes."""
    with pytest.raises(ConfigurationError, match="unix_socket, which leads to one of them"):
        parse_url("mysql://halfmq:secret@db1,db2/orders?unix_socket=/run/mysqld.sock")
