// Makes the page that the wheel holds, ../src/det_web/static/, from src/: without network once `npm ci` has run, and the same
// bytes from the same sources wherever it runs. `node build.mjs FOLDER` writes elsewhere, so that the bytes can be compared.
import { build } from "esbuild";
import { copyFileSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const out = process.argv[2] ?? join(here, "../src/det_web/static");
mkdirSync(out, { recursive: true });

await build({
  absWorkingDir: here,
  entryPoints: { app: "src/main.tsx" },
  outdir: out,
  bundle: true,
  minify: true,
  format: "esm",
  splitting: true, // what few pages need comes when one of them is opened
  chunkNames: "[name]", // without a hash, so that a file keeps its name
  target: ["es2022"],
  jsx: "automatic",
  jsxImportSource: "preact",
  charset: "utf8",
  legalComments: "none", // the licences are in a file of their own
  metafile: true,
}).then(({ metafile }) => {
  const names = new Set();
  for (const file of Object.keys(metafile.inputs)) {
    const found = /^node_modules\/((?:@[^/]+\/)?[^/]+)/.exec(file);
    if (found) names.add(found[1]);
  }
  const texts = [...names].sort().map((name) => {
    const { version, license } = JSON.parse(readFileSync(join(here, "node_modules", name, "package.json"), "utf8"));
    const text = readFileSync(join(here, "node_modules", name, "LICENSE"), "utf8").trim();
    return `${name} ${version} (${license})\n\n${text}\n`;
  });
  writeFileSync(join(out, "THIRD-PARTY-LICENSES"), texts.join(`\n${"-".repeat(80)}\n\n`));
});
for (const name of ["index.html", "icon.svg"]) copyFileSync(join(here, "src", name), join(out, name));
