from __future__ import annotations

import os
import queue
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from det_core.errors import DetError
from det_node import wire
from det_node.wire import Connection, ConnectionLost, KeyRefused, Server, connect, run_key
from det_node.wire._client import _challenged
from det_node.wire._connection import CLEAR, HELLO, MAGIC

pytestmark = pytest.mark.process

KEY = bytes(range(32))
HELLO_SIZE = 80


def echo(connection: Connection) -> None:
    while True:
        connection.send(connection.recv())


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def start(on_connect: Callable[[Connection], None] = echo, **options: object) -> Server:
        servers.append(Server(KEY, on_connect, **options))  # type: ignore[arg-type]
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def raw() -> Iterator[Callable[[Server], socket.socket]]:
    """Sockets that know nothing of the protocol."""
    opened: list[socket.socket] = []

    def open_one(server: Server) -> socket.socket:
        opened.append(socket.create_connection(server.address, timeout=5))
        return opened[-1]

    yield open_one
    for sock in opened:
        sock.close()


def descriptors() -> set[str]:
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            found.add(f"{number} {os.readlink(f'/proc/self/fd/{number}')}")
        except OSError:
            continue
    return found


def is_dropped(sock: socket.socket, seconds: float = 5.0) -> bool:
    """Tell whether the other side hangs up, reading away the challenge first."""
    sock.settimeout(seconds)
    try:
        while sock.recv(4096):
            pass
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


# Frames


def test_frames_arrive_whole_and_in_order_whatever_their_size(serve):
    with connect(serve().address, KEY) as connection:
        for size in (0, 1, 7, 8, 65_535, 65_536, 65_537, 5_000_000):
            data = random.Random(size).randbytes(size)
            connection.send(data)
            assert connection.recv(timeout=10) == data


def test_the_parts_of_a_frame_arrive_as_one(serve):
    with connect(serve().address, KEY) as connection:
        parts = [bytes([n % 256]) * (n * 3) for n in range(1500)]
        connection.send(*parts)
        assert connection.recv_buffer(timeout=10) == bytearray(b"".join(parts))


def test_many_threads_may_send_at_once(serve):
    heard: queue.Queue[bytes] = queue.Queue()

    def listen(connection: Connection) -> None:
        while True:
            heard.put(connection.recv())

    with connect(serve(listen).address, KEY) as connection:
        words = [bytes([n]) * (100_000 + n) for n in range(20)]
        threads = [threading.Thread(target=connection.send, args=(word,)) for word in words]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=10)
        assert sorted(heard.get(timeout=10) for _ in words) == sorted(words)


def test_receiving_works_again_after_a_timeout(serve):
    go = threading.Event()

    def late(connection: Connection) -> None:
        go.wait(10)
        connection.send(b"at last")

    with connect(serve(late).address, KEY) as connection:
        before = time.monotonic()
        with pytest.raises(TimeoutError, match="did not answer in time"):
            connection.recv(timeout=0.05)
        assert time.monotonic() - before < 2
        go.set()
        assert connection.recv(timeout=10) == b"at last"


def test_a_frame_in_two_halves_survives_a_timeout_between_them():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sock = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    frame = (5).to_bytes(8, "big") + b"hello"
    with Connection(sock) as connection, other:
        for end in (3, 7):
            other.send(frame[:end])
            with pytest.raises(TimeoutError):
                connection.recv(timeout=0.02)
            frame = frame[end:]
        other.send(frame)
        assert connection.recv(timeout=5) == b"hello"


def test_timeout_of_a_send_ends_the_connection(serve):
    done = threading.Event()
    with connect(serve(lambda connection: done.wait(10)).address, KEY) as connection:
        with pytest.raises(TimeoutError, match="did not answer in time"):
            connection.send(bytes(50_000_000), timeout=0.2)
        with pytest.raises(ConnectionLost, match="sending failed: TimeoutError"):
            connection.send(b"more")
    done.set()


def test_a_frame_that_is_too_large_is_not_sent(serve):
    with connect(serve().address, KEY, max_frame=1000) as connection:
        with pytest.raises(
            ValueError,
            match="a frame of 1001 bytes is larger than the maximum of 1000; send it in pieces",
        ):
            connection.send(bytes(1001))
        connection.send(bytes(1000))
        assert len(connection.recv(timeout=5)) == 1000


def test_a_frame_announced_too_large_ends_the_connection_unread(serve):
    told: queue.Queue[BaseException] = queue.Queue()

    def listen(connection: Connection) -> None:
        try:
            connection.recv()
        except ConnectionLost as error:
            told.put(error)
            raise

    with connect(serve(listen, max_frame=1000).address, KEY) as connection:
        connection.send(bytes(1001))
        assert "announced a frame of 1001 bytes, more than the maximum of 1000" in str(
            told.get(timeout=5)
        )
        with pytest.raises(ConnectionLost):
            connection.recv(timeout=5)


# Loss


def test_a_closed_peer_is_lost(serve):
    with connect(serve(lambda connection: None).address, KEY) as connection:
        with pytest.raises(
            ConnectionLost,
            match=r"the connection to 127\.0\.0\.1:\d+ is gone: it closed the connection",
        ):
            connection.recv(timeout=5)
        with pytest.raises(ConnectionLost):
            connection.send(b"")


def test_closing_wakes_a_thread_that_receives(serve):
    connection = connect(serve().address, KEY)
    errors: queue.Queue[Exception] = queue.Queue()

    def listen() -> None:
        try:
            connection.recv()
        except Exception as error:
            errors.put(error)

    thread = threading.Thread(target=listen)
    thread.start()
    time.sleep(0.05)
    connection.close()
    thread.join(timeout=5)
    assert "was closed here" in str(errors.get(timeout=5))
    connection.close()


def test_a_killed_peer_is_lost_at_once(serve):
    connected: queue.Queue[Connection] = queue.Queue()
    lost: queue.Queue[float] = queue.Queue()

    def listen(connection: Connection) -> None:
        connected.put(connection)
        try:
            connection.recv(timeout=30)
        except ConnectionLost:
            lost.put(time.monotonic())

    host, port = serve(listen).address
    code = (
        f"import time; from det_node.wire import connect; c = connect(({host!r}, {port}),"
        " bytes(range(32))); time.sleep(60)"
    )
    peer = subprocess.Popen([sys.executable, "-c", code])
    try:
        connected.get(timeout=30)
        killed = time.monotonic()
        peer.send_signal(signal.SIGKILL)
        assert lost.get(timeout=5) - killed < 2
    finally:
        peer.kill()
        peer.wait()


def test_nobody_listening_is_a_connection_that_is_lost():
    with socket.create_server(("127.0.0.1", 0)) as sock:
        address = sock.getsockname()
    with pytest.raises(ConnectionLost, match=f"cannot connect to 127.0.0.1:{address[1]}: "):
        connect(address, KEY)


def test_a_connection_to_itself_is_refused():
    """A client that retries on a free ephemeral port is, once in thousands, connected to itself."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.connect(sock.getsockname())
        with pytest.raises(ConnectionLost, match="nobody listens there"):
            _challenged(sock, time.monotonic() + 5, "127.0.0.1:1")


# Keys of runs


def test_the_key_of_a_run_opens_the_door_to_that_run(serve):
    came: queue.Queue[int] = queue.Queue()
    server = serve(lambda connection: came.put(connection.run))
    with connect(server.address, run_key(KEY, 3), run=3) as connection:
        assert connection.run == 3
        assert came.get(timeout=5) == 3
    with connect(server.address, KEY):
        assert came.get(timeout=5) == 0


def test_who_is_given_an_end_is_of_its_run_and_proves_nothing(serve):
    runs = queue.SimpleQueue()

    def told(connection: Connection) -> None:
        runs.put((connection.run, connection.given, connection.peer))
        echo(connection)

    server = serve(told)
    with Connection(server.give(7)) as given, connect(server.address, KEY) as came:
        for connection in (given, came):
            connection.send(b"word" * 100_000)
            assert connection.recv(timeout=5) == b"word" * 100_000
            connection.heed()
        assert (given.given, came.given) == (True, False)
    assert {runs.get(timeout=5)[:2] for _ in range(2)} == {(7, True), (0, False)}


def test_an_end_that_was_given_ends_with_either_side(serve):
    over = threading.Event()

    def ends(connection: Connection) -> None:
        try:
            echo(connection)
        finally:
            over.set()

    server = serve(ends)
    server.give(7).close()
    assert over.wait(5)
    with Connection(server.give(7)) as given:
        server.close()
        with pytest.raises(ConnectionLost):
            given.recv(timeout=5)
    with Connection(server.give(7)) as late, pytest.raises(ConnectionLost):
        late.recv(timeout=5)


@pytest.mark.parametrize(("key", "run"), [(run_key(KEY, 3), 4), (run_key(KEY, 3), 0), (KEY, 3)])
def test_the_key_of_a_run_is_of_no_use_for_another(serve, key, run):
    with pytest.raises(KeyRefused, match="refused the key"):
        connect(serve().address, key, run=run)


# Strangers


def test_another_key_is_refused_on_both_sides(serve):
    reached = threading.Event()
    server = serve(lambda connection: reached.set())
    with pytest.raises(
        KeyRefused, match=r"127\.0\.0\.1:\d+ refused the key; give the one that the process there"
    ):
        connect(server.address, bytes(32))
    assert not reached.is_set()


def test_a_server_that_cannot_prove_the_key_is_refused():
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def impostor() -> None:
            sock, _ = listener.accept()
            with sock:
                sock.sendall(MAGIC + CLEAR + bytes(32))
                hello = sock.recv(HELLO_SIZE)
                sock.sendall(hello[-32:])  # the client's own proof, sent back

        thread = threading.Thread(target=impostor)
        thread.start()
        with pytest.raises(KeyRefused, match="does not hold the key; check the address"):
            connect(listener.getsockname(), KEY)
        thread.join(timeout=5)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (b"HTTP/1.1 400 Bad Request" + bytes(40), "is not a process of this version of det"),
        (b"220 smtp", "hung up before"),
    ],
)
def test_another_service_is_refused_by_its_words(words, message):
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def speak() -> None:
            sock, _ = listener.accept()
            sock.sendall(words)
            sock.close()

        thread = threading.Thread(target=speak)
        thread.start()
        with pytest.raises(ConnectionLost, match=message):
            connect(listener.getsockname(), KEY)
        thread.join(timeout=5)


def test_a_server_that_is_silent_is_a_timeout():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        before = time.monotonic()
        with pytest.raises(TimeoutError, match=r"127.0.0.1:\d+ did not answer within 0.2 s"):
            connect(listener.getsockname(), KEY, timeout=0.2)
        assert time.monotonic() - before < 2


def test_an_address_of_another_machine_cannot_be_listened_on(monkeypatch, serve):
    with pytest.raises(
        DetError, match=r"^cannot listen on 192\.0\.2\.1:0 \(.*\); give .* or set DET_BIND_ADDRESS"
    ):
        serve(host="192.0.2.1")
    monkeypatch.setenv("DET_BIND_ADDRESS", "127.0.0.1")
    server = serve(host="192.0.2.1")
    assert server.address[0] == "192.0.2.1"  # what others are told
    with connect(("127.0.0.1", server.address[1]), KEY) as connection:
        connection.send(b"x")
        assert connection.recv(timeout=5) == b"x"


@pytest.mark.parametrize("key", [b"", bytes(15)])
def test_a_short_key_is_refused(key):
    with pytest.raises(ValueError, match=f"the key has {len(key)} bytes; give at least 16"):
        Server(key, echo)
    with pytest.raises(ValueError, match=f"the key has {len(key)} bytes; give at least 16"):
        connect(("127.0.0.1", 1), key)
    assert len(wire.new_key()) == 32
    assert wire.new_key() != wire.new_key()


def test_garbage_is_dropped_while_good_clients_are_served(serve, raw):
    server, noise = serve(), random.Random(4)
    for n in range(60):
        sock = raw(server)
        data = noise.randbytes(noise.choice([1, 3, 8, 40, 79, 80, 81, 1000, 100_000]))
        if n % 3 == 0:
            data = MAGIC + data  # right words, wrong proof
        try:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # hung up already
        assert is_dropped(sock)
        if n % 10 == 0:
            with connect(server.address, KEY) as connection:
                connection.send(b"still there?")
                assert connection.recv(timeout=5) == b"still there?"


def test_wrong_words_are_dropped_at_the_first_wrong_byte(serve, raw):
    server = serve(handshake_timeout=60)
    sock = raw(server)
    sock.sendall(MAGIC[:3] + b"!")
    assert is_dropped(sock)


def test_no_more_than_one_hello_is_read_of_a_stranger(serve, raw):
    sock = raw(serve())
    sock.recv(41)
    sock.sendall(MAGIC + bytes(HELLO_SIZE - len(MAGIC)))
    assert is_dropped(sock)
    assert HELLO == HELLO_SIZE


def test_half_a_handshake_is_dropped_after_its_deadline(serve, raw):
    sock = raw(serve(handshake_timeout=0.3))
    sock.sendall(MAGIC + bytes(20))
    before = time.monotonic()
    assert is_dropped(sock)
    assert 0.1 < time.monotonic() - before < 2


def test_a_slow_drip_does_not_extend_the_deadline(serve, raw):
    sock = raw(serve(handshake_timeout=0.4))
    before = time.monotonic()
    try:
        for byte in MAGIC + bytes(HELLO_SIZE - len(MAGIC)):
            sock.sendall(bytes([byte]))
            time.sleep(0.05)
    except OSError:
        pass
    assert time.monotonic() - before < 2


def test_fifty_silent_clients_delay_nobody(serve, raw):
    server = serve()
    for _ in range(50):
        raw(server)
    before = time.monotonic()
    with connect(server.address, KEY) as connection:
        connection.send(b"x")
        assert connection.recv(timeout=5) == b"x"
    assert time.monotonic() - before < 0.5


def test_excess_silent_clients_displace_the_oldest(serve, raw):
    before = threading.active_count()  # tests of leaks leave threads behind
    before = threading.active_count()
    server = serve(max_pending=5, handshake_timeout=60)
    silent = [raw(server) for _ in range(12)]
    with connect(server.address, KEY) as connection:
        connection.send(b"x")
        assert connection.recv(timeout=5) == b"x"
    assert all(is_dropped(sock) for sock in silent[:7])
    assert not is_dropped(silent[-1], seconds=0.1)
    assert len(server._pending) <= 5
    assert threading.active_count() - before < 12  # none for each stranger


def test_strangers_cost_no_thread(serve, raw):
    server = serve()
    before = threading.active_count()
    for _ in range(30):
        raw(server)
    with connect(server.address, KEY):
        assert threading.active_count() <= before + 1


# The end


def test_nothing_is_left_after_close(serve, raw):
    threads, files = set(threading.enumerate()), descriptors()
    server = Server(KEY, echo)
    sockets = [socket.create_connection(server.address) for _ in range(5)]
    connections = [connect(server.address, KEY) for _ in range(5)]
    for connection in connections:
        connection.send(b"x")
        assert connection.recv(timeout=5) == b"x"
    server.close()
    server.close()
    for connection in connections:
        with pytest.raises(ConnectionLost):
            connection.recv(timeout=5)
        connection.close()
    for sock in sockets:
        assert is_dropped(sock)
        sock.close()
    assert set(threading.enumerate()) == threads
    assert descriptors() == files


def test_detached_connection_outlives_its_handler(serve):
    kept: queue.Queue[Connection] = queue.Queue()

    def keep(connection: Connection) -> None:
        connection.detached = True
        kept.put(connection)

    server = serve(keep)
    with connect(server.address, KEY) as connection, kept.get(timeout=5) as other:
        server.close()
        connection.send(b"on we go")
        assert other.recv(timeout=5) == b"on we go"


def test_the_server_may_be_closed_from_a_handler(serve):
    closed = threading.Event()

    def close(connection: Connection) -> None:
        server.close()
        closed.set()

    server = serve(close)
    with connect(server.address, KEY):
        assert closed.wait(5)


def test_ipv6_is_spoken_where_there_is_one(serve):
    try:
        server = serve(host="::1")
    except OSError:
        pytest.skip("no IPv6 here")
    with connect(server.address, KEY) as connection:
        connection.send(b"x")
        assert connection.recv(timeout=5) == b"x"
        assert connection.peer == f"[::1]:{server.address[1]}"


def test_a_connection_can_be_waited_for(serve):
    import select

    with connect(serve().address, KEY) as connection:
        assert select.select([connection], [], [], 0)[0] == []
        connection.send(b"x")
        assert select.select([connection], [], [], 5)[0] == [connection]


def test_small_frame_is_sent_at_once_unless_it_would_wait(serve: Callable[..., Server]) -> None:
    """It does not overtake what another thread is sending."""
    heard: queue.Queue[bytes] = queue.Queue()
    reads = threading.Event()

    def listen(connection: Connection) -> None:
        reads.wait(20)
        while True:
            heard.put(connection.recv())

    connection = connect(serve(listen).address, KEY, timeout=5)
    assert not connection.offer(bytes(1 << 13)), "it is not small"
    sent = [b"%d" % number + bytes(2000) for number in range(100_000)]
    count = next(index for index, frame in enumerate(sent) if not connection.offer(frame))
    assert count > 1
    waiting = threading.Thread(target=connection.send, args=(bytes(1 << 24),))
    waiting.start()
    time.sleep(0.1)
    assert not connection.offer(b"overtakes")
    reads.set()
    waiting.join(20)
    assert [heard.get(timeout=5) for _ in range(count + 1)] == [*sent[:count], bytes(1 << 24)]
    connection.close()
    with pytest.raises(ConnectionLost):
        connection.offer(b"too late")
