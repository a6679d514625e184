// Calls of a farm, made from the protos of this repository.
import { createHash } from "node:crypto";
import { fileURLToPath } from "node:url";
import grpc from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";

const PROTOS = process.env.PROTOS_FOLDER ?? fileURLToPath(new URL("../../protos", import.meta.url));
const MAX_RESPONSE_BYTES = 64 * 1024 * 1024;
const MAX_BLOBS = 4096;

export class Farm {
  // `token` is empty in a farm without tenants; `ca` is PEM, null without TLS.
  constructor(endpoint, { token = "", ca = null, timeoutMs = 120_000 } = {}) {
    const options = { defaults: true, longs: String, enums: String, bytes: Buffer, oneofs: true };
    const loaded = loadSync("kernelfarm/v1/compile_service.proto", { ...options, includeDirs: [PROTOS] });
    const { CompileService } = grpc.loadPackageDefinition(loaded).kernelfarm.v1;
    const credentials = ca ? grpc.credentials.createSsl(ca) : grpc.credentials.createInsecure();
    if (token && !ca) throw new Error("a token is sent over TLS only; expected a CA (--ca)");
    this.stub = new CompileService(endpoint, credentials, {
      "grpc.max_receive_message_length": MAX_RESPONSE_BYTES,
    });
    this.metadata = new grpc.Metadata();
    if (token) this.metadata.set("authorization", `Bearer ${token}`);
    this.timeoutMs = timeoutMs;
  }

  close() {
    this.stub.close();
  }

  capabilities() {
    return new Promise((resolve, reject) => {
      this.stub.getCapabilities({}, this.metadata, this.#limits(), (error, reply) =>
        error ? reject(error) : resolve(reply));
    });
  }

  // The programs of a graph, one for each target; `onStage` receives the progress.
  async compile(graph, targets, onStage = () => {}) {
    const programs = [];
    for await (const event of this.stub.compile({ graph, targets }, this.metadata, this.#limits())) {
      if (event.event === "program") programs.push(event.program);
      else onStage(event.stage);
    }
    return programs;
  }

  // The contents of blobs, in the order of the digests; each is checked against its digest.
  async readBlobs(digests) {
    if (digests.length > MAX_BLOBS) throw new Error(`${digests.length} digests; expected <= ${MAX_BLOBS}`);
    const parts = digests.map(() => []);
    for await (const chunk of this.stub.readBlobs({ sha256: digests }, this.metadata, this.#limits())) {
      parts[chunk.index].push(chunk.data);
    }
    return parts.map((chunks, index) => {
      const content = Buffer.concat(chunks);
      const seen = createHash("sha256").update(content).digest();
      if (!seen.equals(digests[index])) throw new Error(`a blob has digest ${seen.toString("hex")}; do not use it`);
      return content;
    });
  }

  #limits() {
    return { deadline: Date.now() + this.timeoutMs };
  }
}
