// Runs one kernel on a 64-bit Arm processor: arguments are the path of its library, its name, the
// number of threads, and the bytes of SVE vectors that the calling thread has and that other threads
// have (0: as the system sets them).
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

static void set_sve_bytes(int bytes) {
  if (bytes && (prctl(PR_SVE_SET_VL, bytes) & PR_SVE_VL_LEN_MASK) != bytes) exit(6);
}

int main(int count, char **words) {
  if (count != 6) return 4;
  void *library = dlopen(words[1], RTLD_NOW);
  kernel_t kernel = library ? (kernel_t)dlsym(library, words[2]) : NULL;
  if (!kernel) {
    fprintf(stderr, "%s\n", dlerror());
    return 5;
  }
  int threads = atoi(words[3]);
  // OpenMP keeps the threads that it starts here, which inherit the length of this one.
  set_sve_bytes(atoi(words[5]));
  int started = 0;
#pragma omp parallel num_threads(threads) reduction(+ : started)
  started++;
  if (started != threads) return 7;
  set_sve_bytes(atoi(words[4]));
  int64_t *counts = read_bytes(2 * sizeof *counts), buffer_count = counts[0];
  int64_t *bytes = read_bytes(buffer_count * sizeof *bytes);
  int64_t *sizes = read_bytes(counts[1] * sizeof *sizes);
  void **buffers = calloc(buffer_count + 1, sizeof *buffers);
  for (int64_t i = 0; i < buffer_count; i++) buffers[i] = read_bytes(bytes[i]);
  int64_t status = kernel(buffers, sizes, threads);
  fwrite(&status, sizeof status, 1, stdout);
  for (int64_t i = 0; i < buffer_count; i++) fwrite(buffers[i], 1, bytes[i], stdout);
  return 0;
}
