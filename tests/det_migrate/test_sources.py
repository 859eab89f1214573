"""Dumps of every format, whole and damaged, and a server."""

from __future__ import annotations

import gzip
import io
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.det_migrate.eras import BEGAN, Tables, dump, field, tables

from det_core.errors import DetError
from det_driver.store import Store
from det_migrate import lines
from det_migrate import server as det_server
from det_migrate.copies import Block, read_tables
from det_migrate.lines import Decoded, LongLine, read_bytea, split_row
from det_migrate.migration import Options, migrate
from det_migrate.server import Server
from det_migrate.sources import open_source

quick = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
# Any version from 10 on: `DET_TEST_POSTGRESQL=/usr/lib/postgresql/10/bin`.
DATA = Path(__file__).with_name("data")
PROGRAMS = Path(os.environ.get("DET_TEST_POSTGRESQL", "/usr/lib/postgresql/15/bin"))


def read(data: bytes, *wanted: str) -> list[tuple[str, tuple[str, ...], list[Any]]]:
    blocks = read_tables(io.BytesIO(data), dict.fromkeys(wanted or ("t",)), "the dump")
    return [(block.table, block.columns, [*block.rows]) for block in blocks]


END = b"--\n-- PostgreSQL database dump complete\n--\n"


@quick
@given(
    st.lists(
        st.one_of(st.none(), st.text(st.characters(exclude_characters="\0", codec="utf-8"))),
        min_size=1,
    )
)
def test_any_text_comes_back_from_a_row(values: list[str | None]) -> None:
    line = "\t".join(map(field, values)).encode() + b"\n"
    assert split_row(line) == [None if value is None else value.encode() for value in values]


@quick
@given(st.binary())
def test_bytes_come_back_in_either_format(data: bytes) -> None:
    assert read_bytea(b"\\x" + data.hex().encode()) == data
    escaped = b"".join(
        b"\\\\" if byte == 92 else b"\\%03o" % byte if byte > 126 or byte < 32 else bytes([byte])
        for byte in data
    )
    if not escaped.startswith(b"\\x"):
        assert read_bytea(escaped) == data


def test_blocks_are_read_by_the_names_of_their_columns() -> None:
    block = (
        b'SET x;\nCOPY "my schema".t (id, "timestamp", "od""d") FROM'
        b" stdin;\n1\ta\\tb\\\\\t\\N\n\\.\n"
    )
    other = b"COPY public.other (id) FROM stdin;\nCOPY public.t (id) FROM stdin;\n\\.\n"
    assert read(other + block + END) == [
        ("t", ("id", "timestamp", 'od"d'), [[b"1", b"a\tb\\", None]])
    ]


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.text(st.characters(exclude_characters="\0", codec="utf-8")),
)


def literal(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "NULL", True: "true", False: "false"}[value]
    return str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"


@quick
@given(st.lists(st.tuples(VALUES, VALUES), min_size=1), st.integers(1, 3), st.booleans())
def test_any_values_come_back_from_inserts(
    rows: list[tuple[Any, Any]], at_once: int, has_names: bool
) -> None:
    """A function that inserts, and another table, lie before them."""
    head = 'INSERT INTO public.t ("order", b)' if has_names else "INSERT INTO public.t"
    text = "CREATE FUNCTION f() RETURNS trigger\n    AS $$\nINSERT INTO t VALUES (NEW.id);\n$$;\n"
    text += 'CREATE TABLE public.t (\n    "order" text,\n    b text NOT NULL,\n'
    text += "    CONSTRAINT c CHECK ((b > 0))\n);\nINSERT INTO public.o VALUES ('\nCOPY t (a');\n"
    for first in range(0, len(rows), at_once):
        parts = [f"({literal(a)}, {literal(b)})" for a, b in rows[first : first + at_once]]
        text += f"{head} VALUES {','.join(parts)};\n"
    [(table, columns, found)] = read(text.encode() + b"\n" + END)
    assert (table, columns) == ("t", ("order", "b"))
    signs = {True: b"t", False: b"f", None: None}
    assert found == [
        [signs[v] if v is None or isinstance(v, bool) else str(v).encode() for v in row]
        for row in rows
    ]


@quick
@given(st.lists(st.one_of(st.none(), st.text(), st.binary(), st.just("\\xyz" * 40)), min_size=1))
def test_a_long_line_has_the_fields_of_a_short_one(values: list[Any]) -> None:
    """Every line is taken for a long one, and read in parts of 16 bytes."""
    texts = [value.replace("\0", "") if isinstance(value, str) else value for value in values]
    line = "\t".join(map(field, texts)).encode("utf-8", "surrogatepass") + b"\n"
    whole = split_row(line)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "_LONG", 16)
        stream = io.BytesIO(line)
        long = LongLine(stream.readline(16), stream)
    for value, one, other in zip(values, long.fields, whole, strict=True):
        if isinstance(value, bytes):
            assert one is not None
            assert other is not None
            assert read_bytea(one) == read_bytea(other) == value
        else:
            assert one == other


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"COPY public.t (id) FROM stdin;\n1\n", "is cut off in the table t"),
        (b"COPY public.t (id) FROM stdin;\n1\n\\.\n", "is cut off after the table t"),
        (b"", "is cut off before the first table, or is no dump"),
        (b"INSERT INTO public.t VALUES (1);\n" + END, "does not say the columns of t"),
        (b"INSERT INTO public.t (a) VALUES ('x\n" + END, "is cut off in an INSERT statement"),
        (b"INSERT INTO public.t (a) VALUES (f(1));\n" + END, "cannot read 'INSERT INTO public.t"),
        (2 * b"COPY public.t (id) FROM stdin;\n1\n\\.\n" + END, "holds the table t twice"),
    ],
)
def test_a_dump_that_is_not_whole_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(DetError, match=why):
        read(data)


def test_what_is_no_dump_is_named(tmp_path: Path) -> None:
    with pytest.raises(DetError, match=r"cannot read .*gone: No such file"):
        open_source(str(tmp_path / "gone"))
    with pytest.raises(DetError, match=r"holds a file toc\.dat; of its 0 files"):
        open_source(str(tmp_path))
    wide = tmp_path / "wide.sql"
    wide.write_bytes("-- PostgreSQL database dump".encode("utf-16"))
    with pytest.raises(DetError, match="is in UTF-16, as PowerShell writes"):
        open_source(str(wide))
    empty = tmp_path / "empty.sql"
    empty.write_bytes(END)
    with pytest.raises(DetError, match="experiments is missing"):
        migrate(open_source(str(empty)), tmp_path / "home", Options())


def trials(home: Path) -> str:
    with Store.reader(home) as store:
        # A server sorts the keys of a map.
        metrics = [
            (m.group, m.batches, m.time, sorted(m.values.items()))
            for m in store.metrics.read(experiment_id=3)
        ]
        return repr([store.trials.list(3), metrics])


def test_dump_through_a_terminal_imports_the_same(tmp_path: Path) -> None:
    """`docker exec -t` ends the lines with a carriage return."""
    whole = dump(tables("0.38.0"))
    for name, data in (("own", whole), ("terminal", whole.replace(b"\n", b"\r\n"))):
        (tmp_path / f"{name}.sql").write_bytes(data)
        tally = migrate(open_source(str(tmp_path / f"{name}.sql")), tmp_path / name, Options())
        assert tally.written["metrics"] == 13
    assert trials(tmp_path / "terminal") == trials(tmp_path / "own")


def test_a_directory_with_one_dump_is_that_dump(tmp_path: Path) -> None:
    (tmp_path / "dump.sql").write_bytes(END)
    assert open_source(str(tmp_path)).name == str(tmp_path / "dump.sql")


def test_a_packed_dump_is_read_and_a_damaged_one_refused(tmp_path: Path) -> None:
    packed = gzip.compress(dump(tables("0.38.0")), mtime=0)
    (tmp_path / "dump.sql.gz").write_bytes(packed)
    assert (
        migrate(open_source(str(tmp_path / "dump.sql.gz")), tmp_path / "home", Options()).written[
            "trials"
        ]
        == 2
    )
    (tmp_path / "dump.sql.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(DetError, match="make it again with pg_dump"):
        migrate(open_source(str(tmp_path / "dump.sql.gz")), tmp_path / "other", Options())
    with Store(tmp_path / "other") as store:
        assert store.experiments.list() == []


def test_an_archive_without_pg_restore_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    (tmp_path / "dump").write_bytes(b"PGDMP\1\x0e")
    with pytest.raises(DetError, match=r"only pg_restore reads.*postgresql-client"):
        open_source(str(tmp_path / "dump"))


def create(database: Tables) -> str:
    """Return statements that make the tables, with the types that matter."""
    kinds = {
        "model_definition": "bytea",
        "log": "bytea",
        "message": "bytea",
        "config": "jsonb",
        "metrics": "jsonb",
    }
    kinds |= {"hparams": "jsonb", "resources": "jsonb", "metadata": "jsonb", "archived": "boolean"}
    kinds |= dict.fromkeys(
        ("id", "trial_id", "experiment_id", "run_id", "total_batches", "trial_run_id"), "bigint"
    )
    made = []
    for name, (columns, _) in database.items():
        zoned = () if name == "allocations" else ("start_time", "end_time")
        typed = [
            f'"{column}" {"timestamptz" if column in zoned else kinds.get(column, "text")}'
            for column in columns
        ]
        made.append(f"CREATE TABLE {name} ({', '.join(typed)});")
    return "\n".join(made)


@pytest.fixture(scope="module")
def server(processes: object) -> Iterator[Callable[[str], str]]:
    """A server of PostgreSQL with the history of a master; returns an address for a user."""
    if not (PROGRAMS / "initdb").exists():
        pytest.skip(f"there is no PostgreSQL in {PROGRAMS} (package postgresql)")
    # A server does not run as root, and its user has to come to the place.
    place = Path(tempfile.mkdtemp(prefix="det-postgresql-"))
    as_user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    if as_user:
        shutil.chown(place, "postgres")

    def run(*command: object, **options: Any) -> None:
        subprocess.run(
            [*as_user, *map(str, command)], check=True, cwd=place, capture_output=True, **options
        )

    data = place / "data"
    run(PROGRAMS / "initdb", "-D", data, "-A", "trust", "-U", "postgres", "--no-sync")
    settings = f"-k {place} -c listen_addresses= -c fsync=off -c timezone=Asia/Tokyo"
    run(PROGRAMS / "pg_ctl", "-D", data, "-o", settings, "-l", place / "log", "-w", "start")
    try:
        made = tables("0.38.0")
        script = create(made) + dump(made).decode().split(");\n", 1)[1]
        script += (
            "CREATE VIEW trials AS SELECT 1 AS id; CREATE ROLE poor LOGIN; CREATE ROLE reader"
            " LOGIN;\n"
        )
        script += (
            "GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader, poor; REVOKE SELECT ON"
            " raw_steps FROM poor; ALTER ROLE reader SET statement_timeout = '1min';\n"
        )
        run("psql", "-v", "ON_ERROR_STOP=1", "-h", place, "-U", "postgres", input=script.encode())
        yield lambda user: f"postgresql://{user}@/postgres?host={place}"
    finally:
        run(PROGRAMS / "pg_ctl", "-D", data, "-m", "immediate", "stop")
        shutil.rmtree(place)


@pytest.mark.process
def test_server_and_dumps_of_every_format_import_the_same(
    server: Callable[[str], str], tmp_path: Path
) -> None:
    """A damaged dump is refused."""
    (tmp_path / "own.sql").write_bytes(dump(tables("0.38.0")))
    migrate(open_source(str(tmp_path / "own.sql")), tmp_path / "own", Options())
    wanted = trials(tmp_path / "own")
    migrate(open_source(server("reader")), tmp_path / "live", Options())
    assert trials(tmp_path / "live") == wanted
    chosen = migrate(open_source(server("reader")), tmp_path / "chosen", Options(experiments={3}))
    assert chosen.written["metrics"] == 13
    for form in ("plain", "custom", "directory", "tar"):
        file = tmp_path / f"dump-{form}"
        subprocess.run(
            ["pg_dump", server("postgres"), f"--format={form}", f"--file={file}"], check=True
        )
        migrate(open_source(str(file)), tmp_path / form, Options())
        assert trials(tmp_path / form) == wanted
    for way in ("--inserts", "--column-inserts", "--rows-per-insert=3"):
        file = tmp_path / f"dump{way}"
        subprocess.run(["pg_dump", server("postgres"), way, f"--file={file}"], check=True)
        migrate(open_source(str(file)), tmp_path / way, Options())
        assert trials(tmp_path / way) == wanted
    cut = (tmp_path / "dump-custom").read_bytes()
    (tmp_path / "cut").write_bytes(cut[: len(cut) * 2 // 3])
    with pytest.raises(DetError, match="pg_restore cannot read"):
        migrate(open_source(str(tmp_path / "cut")), tmp_path / "home", Options())


@pytest.mark.process
def test_no_query_runs_into_a_limit_of_the_server(server: Callable[[str], str]) -> None:
    with psycopg.connect(server("reader")) as connection:
        assert connection.execute("SHOW statement_timeout").fetchone() == ("1min",)
    source = Server(server("reader"))
    assert source._connection.execute("SHOW statement_timeout").fetchone() == ("0",)


@pytest.mark.process
def test_long_values_of_a_server_are_read_in_parts(
    server: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library would keep the code of an experiment several times at once."""

    def read() -> list[dict[str, Any]]:
        wanted = {"experiments": ("id", "model_definition", "state")}
        (block,) = Server(server("reader")).blocks(wanted)
        return [dict(zip(block.columns, row, strict=True)) for row in block.rows]

    def values(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [row | {"model_definition": read_bytea(row["model_definition"])} for row in rows]

    whole = read()
    (row,) = values(whole)
    length = len(row["model_definition"])
    assert length > 100
    for size in (7, length - 1, length):
        monkeypatch.setattr(det_server, "_LONG", size)
        rows = read()
        assert isinstance(rows[0]["model_definition"], Decoded) == (size < length)
        assert values(rows) == [row]


@pytest.mark.process
@pytest.mark.parametrize(
    ("version", "form"), [("10", b"PGDMP\1\x0d"), ("14", b"PGDMP\1\x0e")], ids=["10", "14"]
)
def test_dumps_of_earlier_servers_import_the_same(
    version: str, form: bytes, tmp_path: Path
) -> None:
    """`data/archives.py` says how they were made."""
    if shutil.which("pg_restore") is None:
        pytest.skip("there is no pg_restore (package postgresql-client)")
    (tmp_path / "own.sql").write_bytes(dump(tables("0.38.0")))
    migrate(open_source(str(tmp_path / "own.sql")), tmp_path / "own", Options())
    shutil.unpack_archive(DATA / f"pg-{version}-directory.tar.gz", tmp_path)
    toc = tmp_path / f"pg-{version}" / "toc.dat"
    custom = DATA / f"pg-{version}.dump"
    assert toc.read_bytes().startswith(form)
    assert custom.read_bytes().startswith(form)
    for made in (toc.parent, custom, DATA / f"pg-{version}.sql.gz"):
        migrate(open_source(str(made)), tmp_path / f"home-{made.name}", Options())
        assert trials(tmp_path / f"home-{made.name}") == trials(tmp_path / "own")


def run_sql(address: str, text: str) -> None:
    subprocess.run(
        ["psql", "-v", "ON_ERROR_STOP=1", "-q", "-o", os.devnull, "-c", text, address], check=True
    )


class Interrupted:
    """Runs a statement on the server before the first block of the large tables is read."""

    def __init__(self, server: Callable[[str], str], statement: str) -> None:
        self._source, self._server, self._statement = (
            open_source(server("reader")),
            server,
            statement,
        )
        self.name = self._source.name

    def blocks(
        self, wanted: Mapping[str, Sequence[str]], trials: set[int] | None = None
    ) -> Iterator[Block]:
        if "raw_steps" in wanted:
            run_sql(self._server("postgres"), self._statement)
        yield from self._source.blocks(wanted, trials)


@pytest.mark.process
def test_next_call_imports_what_a_live_master_has_written(
    server: Callable[[str], str], tmp_path: Path
) -> None:
    migrate(open_source(server("reader")), tmp_path / "before", Options())
    writes = (
        "INSERT INTO raw_validations (id, trial_id, end_time, metrics, total_batches, trial_run_id,"
        ' archived) VALUES (99, 5, now(), \'{"validation_metrics": {"error": 0}}\', 900, 2, false);'
        " UPDATE experiments SET end_time = now();"
    )
    try:
        migrate(Interrupted(server, writes), tmp_path / "home", Options())
        assert trials(tmp_path / "home") == trials(tmp_path / "before")
        again = migrate(open_source(server("reader")), tmp_path / "home", Options())
        assert again.left_out["experiments", "there already, as it was earlier"] == 1
        migrate(open_source(server("reader")), tmp_path / "after", Options())
        assert trials(tmp_path / "after") != trials(tmp_path / "before")
    finally:
        at = f"to_timestamp({BEGAN + 400})"
        run_sql(
            server("postgres"),
            f"DELETE FROM raw_validations WHERE id = 99; UPDATE experiments SET end_time = {at}",
        )


@pytest.mark.process
def test_a_server_that_goes_away_is_named_and_nothing_is_written(
    server: Callable[[str], str], tmp_path: Path
) -> None:
    gone = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'reader'"
    with pytest.raises(DetError, match=r"cannot read the table .* of .*: terminating connection"):
        migrate(Interrupted(server, gone), tmp_path / "home", Options())
    with Store.reader(tmp_path / "home") as store:
        assert store.experiments.list() == []
    assert (
        migrate(open_source(server("reader")), tmp_path / "home", Options()).written["experiments"]
        == 1
    )


@pytest.mark.process
def test_a_table_without_rights_is_named(server: Callable[[str], str], tmp_path: Path) -> None:
    with pytest.raises(DetError, match=r"cannot read the table raw_steps of .*: permission denied"):
        migrate(open_source(server("poor")), tmp_path / "home", Options())
    with pytest.raises(DetError, match=r'cannot reach .*: .*role "nobody" does not exist'):
        open_source(server("nobody"))
