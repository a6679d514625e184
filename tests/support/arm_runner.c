// Runs one kernel on a 64-bit Arm processor: arguments are the path of its library, its name, the
// number of threads, and the bytes of its SVE vectors (0: as they are).
//
// Reads from standard input, all numbers with 8 bytes: the number of buffers and of sizes, the
// bytes of each buffer, the sizes, the contents of the buffers. Writes the kernel's status and the
// contents of all buffers to standard output.
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>

typedef int32_t (*kernel_t)(void *const *buffers, const int64_t *sizes, int32_t threads);

static void *read_bytes(int64_t bytes) {
  void *memory = aligned_alloc(64, (bytes / 64 + 1) * 64);
  if (!memory || (bytes && fread(memory, bytes, 1, stdin) != 1)) exit(3);
  return memory;
}

int main(int count, char **words) {
  if (count != 5) return 4;
  void *library = dlopen(words[1], RTLD_NOW);
  kernel_t kernel = library ? (kernel_t)dlsym(library, words[2]) : NULL;
  if (!kernel) {
    fprintf(stderr, "%s\n", dlerror());
    return 5;
  }
  int sve_bytes = atoi(words[4]);
  if (sve_bytes && (prctl(PR_SVE_SET_VL, sve_bytes) & PR_SVE_VL_LEN_MASK) != sve_bytes) return 6;
  int64_t *counts = read_bytes(2 * sizeof *counts), buffer_count = counts[0];
  int64_t *bytes = read_bytes(buffer_count * sizeof *bytes);
  int64_t *sizes = read_bytes(counts[1] * sizeof *sizes);
  void **buffers = calloc(buffer_count + 1, sizeof *buffers);
  for (int64_t i = 0; i < buffer_count; i++) buffers[i] = read_bytes(bytes[i]);
  int64_t status = kernel(buffers, sizes, atoi(words[3]));
  fwrite(&status, sizeof status, 1, stdout);
  for (int64_t i = 0; i < buffer_count; i++) fwrite(buffers[i], 1, bytes[i], stdout);
  return 0;
}
