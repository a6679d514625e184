// Runs kernels on a RISC-V processor: reads requests from standard input, and answers to standard
// output. All numbers are little-endian and have 8 bytes.
//
// Load:   1, bytes of the path, bytes of the symbol, path, symbol.
//         Answer: the kernel's number, or -1, bytes of a message, message.
// Launch: 2, kernel, regions, buffers, sizes, threads; for each region its bytes and its offset
//         within a page; for each buffer its region and its offset in it; the sizes; the contents of
//         the regions.
//         Answer: the kernel's status; for each region 1 and its contents, or 0 if nothing changed.
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int32_t (*kernel_t)(void *const *buffers, const int64_t *sizes, int32_t threads);

enum { LOAD = 1, LAUNCH = 2, PAGE_BYTES = 4096 };

static kernel_t *kernels;
static int64_t kernel_count;

static void read_exactly(void *to, size_t bytes) {
  if (bytes && fread(to, 1, bytes, stdin) != bytes) exit(0);  // the client has ended
}

static int64_t read_number(void) {
  int64_t number;
  read_exactly(&number, sizeof number);
  return number;
}

static void write_number(int64_t number) { fwrite(&number, sizeof number, 1, stdout); }

static void *memory(size_t bytes) {
  void *found = aligned_alloc(PAGE_BYTES, (bytes / PAGE_BYTES + 1) * PAGE_BYTES);
  if (!found) abort();
  return found;
}

static void load(void) {
  int64_t path_bytes = read_number(), symbol_bytes = read_number();
  char *path = calloc(1, path_bytes + 1), *symbol = calloc(1, symbol_bytes + 1);
  read_exactly(path, path_bytes);
  read_exactly(symbol, symbol_bytes);
  void *library = dlopen(path, RTLD_NOW);
  void *kernel = library ? dlsym(library, symbol) : NULL;
  if (kernel) {
    kernels = realloc(kernels, (kernel_count + 1) * sizeof *kernels);
    kernels[kernel_count] = (kernel_t)kernel;
    write_number(kernel_count++);
  } else {
    const char *message = dlerror();
    write_number(-1);
    write_number(strlen(message));
    fwrite(message, 1, strlen(message), stdout);
  }
  free(path);
  free(symbol);
}

typedef struct {
  int64_t bytes;
  char *block, *content, *before;
} region_t;

static void launch(void) {
  int64_t kernel = read_number(), region_count = read_number(), buffer_count = read_number();
  int64_t size_count = read_number(), threads = read_number();
  region_t *regions = memory(region_count * sizeof *regions);
  void **buffers = memory(buffer_count * sizeof *buffers);
  int64_t *sizes = memory(size_count * sizeof *sizes);
  for (int64_t i = 0; i < region_count; i++) {
    int64_t bytes = read_number(), offset = read_number();
    char *block = memory(bytes + offset);
    regions[i] = (region_t){bytes, block, block + offset, memory(bytes)};
  }
  for (int64_t i = 0; i < buffer_count; i++) {
    int64_t region = read_number();
    buffers[i] = regions[region].content + read_number();
  }
  for (int64_t i = 0; i < size_count; i++) sizes[i] = read_number();
  for (int64_t i = 0; i < region_count; i++) {
    read_exactly(regions[i].content, regions[i].bytes);
    memcpy(regions[i].before, regions[i].content, regions[i].bytes);
  }
  write_number(kernels[kernel](buffers, sizes, threads));
  for (int64_t i = 0; i < region_count; i++) {
    region_t region = regions[i];
    // Memory that a kernel only reads may be read-only for the client.
    int64_t is_changed = memcmp(region.before, region.content, region.bytes) != 0;
    write_number(is_changed);
    if (is_changed) fwrite(region.content, 1, region.bytes, stdout);
    free(region.block);
    free(region.before);
  }
  free(regions);
  free(buffers);
  free(sizes);
}

int main(void) {
  for (;;) {
    switch (read_number()) {
      case LOAD: load(); break;
      case LAUNCH: launch(); break;
      default: return 1;
    }
    fflush(stdout);
  }
}
