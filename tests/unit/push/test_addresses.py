import socket

import pytest

from timerwheel.push.addresses import TargetError, check_url, guarded_sockets, is_public

PUBLIC = [
    "1.1.1.1", "8.8.8.8", "93.184.216.34", "172.15.255.255", "172.32.0.0", "100.63.255.255", "100.128.0.0",
    "169.253.255.255", "192.167.255.255", "11.0.0.0", "126.255.255.255", "128.0.0.0", "223.255.255.255",
    "2606:4700:4700::1111", "2a00:1450:4001:81b::200e", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8",
    "2002:808:808::1",
]  # fmt: skip
NOT_PUBLIC = [
    "0.0.0.0", "0.1.2.3", "10.0.0.1", "10.255.255.255", "100.64.0.1", "100.100.100.200", "127.0.0.1",
    "127.255.255.254", "169.254.0.1", "169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.1",
    "192.0.0.192", "192.0.2.1", "192.88.99.1", "192.168.0.1", "198.18.0.1", "198.19.255.255", "198.51.100.1",
    "203.0.113.1", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255", "168.63.129.16",
    "::", "::1", "::127.0.0.1", "::8.8.8.8", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254",
    "::ffff:0:127.0.0.1", "64:ff9b::127.0.0.1", "64:ff9b::a00:1", "64:ff9b:1::8.8.8.8", "100::1",
    "2001::1", "2001:0:808:808:0:0:80ff:fffe", "2001:db8::1", "2001:10::1", "2002:7f00:1::1",
    "2002:a00:1::1", "2002:a9fe:a9fe::1", "2606:4700::5efe:127.0.0.1", "2606:4700::200:5efe:10.0.0.1",
    "3fff::1", "5f00::1", "fc00::1", "fd00:ec2::254", "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1",
    "2606:4700:4700::1111%eth0", "not an address", "", "127.1", "2130706433", "0x7f.1", "0177.0.0.1",
]  # fmt: skip


@pytest.mark.parametrize("address", PUBLIC)
def test_address_is_public(address):
    assert is_public(address)


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_address_is_not_public(address):
    assert not is_public(address)


@pytest.mark.parametrize(
    ("given", "called"),
    [
        ("https://example.com", "https://example.com"),
        ("HTTP://Example.COM:8080/a/b?c=d", "http://example.com:8080/a/b?c=d"),
        ("https://example.com./x", "https://example.com./x"),
        ("https://under_score.example.com/", "https://under_score.example.com/"),
        ("https://bücher.example/ü", "https://xn--bcher-kva.example/%C3%BC"),
        ("https://8.8.8.8/", "https://8.8.8.8/"),
        ("https://[2606:4700:4700::1111]:8443/", "https://[2606:4700:4700::1111]:8443/"),
        ("https://a/", "https://a/"),
        ("https://example.com:65535/a%2Fb?q=%20", "https://example.com:65535/a%2Fb?q=%20"),
        ("https://1.example.com/", "https://1.example.com/"),
    ],
)
def test_a_url_is_accepted_in_the_form_in_which_it_is_called(given, called):
    assert check_url(given, allow_private=False) == called


FORM = [
    "", "example.com", "//example.com/", "ftp://example.com/", "file:///etc/passwd", "unix:///x", "gopher://a/",
    "http://", "http:///x", "http://?x", "http://user@example.com/", "http://user:pw@example.com/",
    "http://@example.com/", "http://:@example.com/", "http://example.com#x", "http://example.com/#",
    "http://example.com:0/", "http://example.com:65536/", "http://example.com:x/", "http://exam ple.com/",
    "http://example.com\\@127.0.0.1/", "http://example.com/a\nb", "http://example.com/\t", " http://example.com",
    "http://example.com\x7f/", "http://a..b/", "http://.a/", "http://[::1", "http://[v1.x]/",
    "http://%31%32%37.0.0.1/", "http://a%00b/", "http://[fe80::1%25eth0]/", "http://" + "a" * 64 + ".com/",
    "http://example.com/" + "a" * 2048, "http://a,b/", "http://a;b/",
    # Numbers that the system's own resolver takes for IPv4 addresses.
    "http://2130706433/", "http://0x7f000001/", "http://0x7f.1/", "http://127.1/", "http://127.0.1/",
    "http://0177.0.0.1/", "http://0177.1/", "http://127.0.0.1./", "http://0x/", "http://1.2.3.4.5/",
    "http://256.1.1.1/", "http://00000000177.0.0.1/", "http://a.b.0x7f/", "http://8.8.8.010/", "http://134744072/",
]  # fmt: skip


@pytest.mark.parametrize("url", FORM)
@pytest.mark.parametrize("allow_private", [False, True])
def test_a_url_of_another_form_is_refused_for_any_target(url, allow_private):
    with pytest.raises(TargetError):
        check_url(url, allow_private=allow_private)


PRIVATE = [
    "http://127.0.0.1/", "http://10.0.0.1:8080/", "http://169.254.169.254/latest/meta-data", "http://[::1]/",
    "http://[::ffff:127.0.0.1]/", "http://[::ffff:7f00:1]/", "http://[fd00::1]/", "http://0.0.0.0/",
    "http://localhost/", "http://LocalHost./", "http://a.localhost/", "http://①②⑦.⓪.⓪.①/",
    "http://127。0。0。1/", "http://\uff11\uff12\uff17.0.0.1/", "http://[0:0:0:0:0:0:0:1]/",
    "http://[64:ff9b::7f00:1]/",
]  # fmt: skip


@pytest.mark.parametrize("url", PRIVATE)
def test_a_private_target_is_refused_unless_it_is_allowed(url):
    with pytest.raises(TargetError, match="not a public address"):
        check_url(url, allow_private=False)
    check_url(url, allow_private=True)


def info(family: int, *address: object) -> tuple:
    return (family, socket.SOCK_STREAM, 0, "", address)


@pytest.mark.parametrize(
    "refused",
    [
        info(socket.AF_INET, "127.0.0.1", 80),
        info(socket.AF_INET6, "::1", 80, 0, 0),
        info(socket.AF_INET6, "::ffff:10.0.0.1", 80, 0, 0),
        info(socket.AF_INET6, "fe80::1%lo", 80, 0, 1),
    ],
)
def test_no_socket_is_made_for_a_private_address(refused):
    with pytest.raises(PermissionError, match="not a public address"):
        guarded_sockets(allow_private=False)(refused)


def test_sockets_are_made_for_public_addresses_and_for_all_where_it_is_allowed():
    guarded_sockets(allow_private=False)(info(socket.AF_INET, "8.8.8.8", 80)).close()
    guarded_sockets(allow_private=True)(info(socket.AF_INET, "127.0.0.1", 80)).close()
