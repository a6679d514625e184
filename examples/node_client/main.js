#!/usr/bin/env node
// node main.js --endpoint HOST:PORT --out FOLDER [--graph FILE] [--target TARGET ...]
import { mkdir, readFile, writeFile } from "node:fs/promises";
import { basename, join } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { Farm, NOT_FOUND } from "./farm.js";

const { values } = parseArgs({
  options: {
    endpoint: { type: "string", default: "127.0.0.1:50051" },
    graph: { type: "string", default: fileURLToPath(new URL("../graphs/row_softmax.json", import.meta.url)) },
    target: { type: "string", multiple: true, default: ["cpu:x86-64-v3"] },
    out: { type: "string", default: "build" },
    ca: { type: "string" },
  },
});

const farm = new Farm(values.endpoint, {
  token: process.env.KERNELFARM_TOKEN ?? "",
  ca: values.ca ? await readFile(values.ca) : null,
});
try {
  const { farmVersion, targets } = await farm.capabilities();
  console.log(`farm ${farmVersion}: ${targets.length} targets`);
  const graph = JSON.parse(await readFile(values.graph, "utf8"));
  // The cache may drop a binary after Compile, which makes it again.
  await farm.repeated(() => compileAndSave(graph), NOT_FOUND);
} catch (error) {
  console.error(`error: ${error.details ?? error.message}`);
  process.exitCode = 1;
} finally {
  farm.close();
}

async function compileAndSave(graph) {
  const programs = await farm.compile(graph, values.target, ({ stage, target }) =>
    console.log(`stage ${stage} ${target}`));
  for (const program of programs) await save(program);
}

async function save({ key, target, artifacts, outcome }) {
  console.log(`program ${key.toString("hex")} for ${target}: ${outcome}`);
  const folder = join(values.out, target.replace(":", "-"));
  await mkdir(folder, { recursive: true });
  const binaries = artifacts.map((artifact) => artifact.stages.find((s) => s.name === artifact.binaryStage));
  const contents = await farm.readBlobs(binaries.map((stage) => stage.blob.sha256));
  for (const [index, artifact] of artifacts.entries()) {
    // The name comes from the farm: it must not lead out of the folder.
    const file = join(folder, basename(`${artifact.launch.symbol}.${index}.${artifact.binaryStage}`));
    await writeFile(file, contents[index]);
    console.log(`written ${file} (${contents[index].length} bytes)`);
  }
}
