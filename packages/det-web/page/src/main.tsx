// Where it starts: the frame around every page, and which page an address is.
import { render } from "preact";
import { useEffect } from "preact/hooks";
import { A, go, path, param } from "./address";
import { about, get, unreachable, type About } from "./api";
import "./app.css";
import { Cluster } from "./cluster";
import { Compare } from "./compare";
import { Experiment } from "./experiment";
import { Experiments } from "./experiments";
import { helpButton, KeysHelp, startKeys, useKeys } from "./keys";
import { Later } from "./lazy";
import { startLive, useGet } from "./live";
import { Empty } from "./parts";
import { dark, startTheme, switchTheme } from "./theme";
import { Trial } from "./trial";

function Frame() {
  useKeys({ g: () => go("/"), l: () => go("/latest"), d: switchTheme }, []);
  const told = useGet<About>("/about").value;
  useEffect(() => {
    about.value = told;
  }, [told]);
  return (
    <>
      <a class="skip" href="#content">
        Skip to the content
      </a>
      <nav class="bar" aria-label="pages">
        <A to="/" class="brand" aria-current={path.value === "/" ? "page" : undefined}>
          det
        </A>
        <A to="/">Experiments</A>
        <A to="/latest">Latest</A>
        <A to="/cluster">Cluster</A>
        {PAGES.filter((name) => (name === "users" ? told?.user : name !== "alerts" || (told && told.role !== "viewer" && told.role !== "editor"))).map((name) => (
          <A key={name} to={`/${name}`} aria-current={path.value.split("/")[1] === name ? "page" : undefined}>
            {name[0]!.toUpperCase() + name.slice(1)}
          </A>
        ))}
        <span class="home" title={told && `det ${told.version}`}>
          {told && `${told.hostname}: ${told.home}`}
        </span>
        {told?.user && (
          <a href="/login" title={`signed in as ${told.role}; sign out`}>
            {told.user}
          </a>
        )}
        <button onClick={switchTheme} aria-label={dark.value ? "light colours" : "dark colours"} title="dark or light (d)">
          {dark.value ? "☀" : "☾"}
        </button>
        <button onClick={helpButton} aria-label="keys" title="keys (?)">
          ?
        </button>
      </nav>
      <p class="offline" role="status" hidden={!unreachable.value}>
        The server does not answer: what is shown is what it said last. It is asked again by itself; <code>det ui</code> starts it.
      </p>
      <div id="content">
        <Page />
      </div>
      <KeysHelp />
    </>
  );
}

function Page() {
  const [kind, id, section] = path.value.slice(1).split("/");
  const number = Number(id);
  useEffect(() => {
    const what = kind === "e" ? `experiment ${id}` : kind === "t" ? `trial ${id}` : kind || "experiments";
    document.title = `${what} · det`;
  }, [path.value]);
  if (!kind) return <Experiments />;
  if (kind === "e" && number) return <Experiment key={number} id={number} section={section || "trials"} />;
  if (kind === "t" && number) return <Trial key={number} id={number} section={section || "metrics"} />;
  if (kind === "compare") return <Compare ids={param("t").split(",").map(Number).filter(Boolean)} />;
  if (kind === "cluster") return <Cluster />;
  if (kind === "latest") return <Latest />;
  if (PAGES.includes(kind)) return <Later key={kind} name={kind} />;
  return (
    <main>
      <Empty>
        There is no page at this address. <A to="/">All experiments</A>
      </Empty>
    </main>
  );
}

/** The pages for a team. */
const PAGES = ["queue", "models", "usage", "alerts", "users"];

/** Goes to the newest experiment, and leaves no entry in the history: going back goes to where one was. */
function Latest() {
  useEffect(() => {
    void get<{ columns: { id: number[] } }>("/experiments").then(({ columns }) => go(columns.id.length ? `/e/${Math.max(...columns.id)}/trials` : "/", true));
  }, []);
  return <main aria-busy="true" />;
}

startTheme();
startKeys();
startLive();
render(<Frame />, document.getElementById("app")!);
