// Calls of a farm, made from the protos of this repository.
import { createHash } from "node:crypto";
import { setTimeout } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import grpc from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";

const PROTOS = process.env.PROTOS_FOLDER ?? fileURLToPath(new URL("../../protos", import.meta.url));
const MAX_RESPONSE_BYTES = 64 * 1024 * 1024;
const MAX_BLOBS = 4096;
export const NOT_FOUND = grpc.status.NOT_FOUND;
const FIRST_PAUSE_MS = 100;
const LONGEST_PAUSE_MS = 2_000;

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
      // With `dns:///NAME:PORT`, calls go to all replicas of the name.
      "grpc.service_config": JSON.stringify({ loadBalancingConfig: [{ round_robin: {} }] }),
      "grpc.dns_min_time_between_resolutions_ms": 2_000,
      "grpc.initial_reconnect_backoff_ms": 100,
      "grpc.max_reconnect_backoff_ms": 2_000,
      "grpc.keepalive_time_ms": 20_000,
      "grpc.keepalive_timeout_ms": 10_000,
    });
    this.metadata = new grpc.Metadata();
    if (token) this.metadata.set("authorization", `Bearer ${token}`);
    this.timeoutMs = timeoutMs;
  }

  close() {
    this.stub.close();
  }

  capabilities() {
    return this.repeated((limits) => new Promise((resolve, reject) => {
      this.stub.getCapabilities({}, this.metadata, limits, (error, reply) =>
        error ? reject(error) : resolve(reply));
    }));
  }

  // The programs of a graph, one for each target; `onStage` receives the progress, after a repetition again.
  compile(graph, targets, onStage = () => {}) {
    return this.repeated(async (limits) => {
      const programs = [];
      for await (const event of this.stub.compile({ graph, targets }, this.metadata, limits)) {
        if (event.event === "program") programs.push(event.program);
        else onStage(event.stage);
      }
      return programs;
    });
  }

  // The contents of blobs, in the order of the digests; each is checked against its digest.
  async readBlobs(digests) {
    if (digests.length > MAX_BLOBS) throw new Error(`${digests.length} digests; expected <= ${MAX_BLOBS}`);
    const parts = await this.repeated(async (limits) => {
      const read = digests.map(() => []);
      for await (const chunk of this.stub.readBlobs({ sha256: digests }, this.metadata, limits)) {
        read[chunk.index].push(chunk.data);
      }
      return read;
    });
    return parts.map((chunks, index) => {
      const content = Buffer.concat(chunks);
      const seen = createHash("sha256").update(content).digest();
      if (!seen.equals(digests[index])) throw new Error(`a blob has digest ${seen.toString("hex")}; do not use it`);
      return content;
    });
  }

  // The result of a call, repeated until its deadline while a replica of the farm restarts or the farm is full.
  // Every RPC may be repeated; `also` is another status after which this call may be. gRPC's own retries never repeat
  // a call that has received a message.
  async repeated(call, also = grpc.status.UNAVAILABLE) {
    const deadline = Date.now() + this.timeoutMs;
    for (let pauseMs = FIRST_PAUSE_MS; ; pauseMs = Math.min(2 * pauseMs, LONGEST_PAUSE_MS)) {
      try {
        return await call({ deadline });
      } catch (error) {
        const waitMs = pauseMs * (1 + Math.random() / 2);
        if ((error.code !== also && !mayRepeat(error)) || Date.now() + waitMs >= deadline) throw error;
        await setTimeout(waitMs);
      }
    }
  }
}

// CANCELLED comes from a server that ended before the call. A RetryInfo says that the farm is full; without one,
// RESOURCE_EXHAUSTED means a limit that a repetition exceeds, too.
function mayRepeat({ code, metadata }) {
  if (code === grpc.status.UNAVAILABLE || code === grpc.status.CANCELLED) return true;
  const [details] = metadata?.get("grpc-status-details-bin") ?? [];
  return code === grpc.status.RESOURCE_EXHAUSTED && Boolean(details?.includes("google.rpc.RetryInfo"));
}
