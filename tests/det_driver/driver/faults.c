/* Fails or ends the writes to SQLite's files: preloaded into a driver.

   FAULT_AT: the number of the write that is struck, from 1. FAULT_KIND: "eio" fails that one, "enospc" that one and all
   that follow, "kill" kills the process at it. FAULT_COUNT: a file that holds the number of writes, a byte for each. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int ends_with(const char *text, const char *end) {
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

static int is_database(int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n < 0) return 0;
    path[n] = 0;
    return ends_with(path, ".db") || ends_with(path, ".db-wal") || ends_with(path, ".db-journal");
}

static int struck(int fd) {
    static long count = 0;
    const char *kind = getenv("FAULT_KIND"), *counted = getenv("FAULT_COUNT");
    if (!is_database(fd)) return 0;
    count++;
    if (counted) {
        int file = open(counted, O_WRONLY | O_CREAT | O_APPEND, 0600);
        if (write(file, ".", 1) < 0) abort();
        close(file);
    }
    if (!kind) return 0;
    long at = atol(getenv("FAULT_AT"));
    if (strcmp(kind, "enospc") == 0 ? count < at : count != at) return 0;
    if (strcmp(kind, "kill") == 0) kill(getpid(), SIGKILL);
    errno = strcmp(kind, "enospc") == 0 ? ENOSPC : EIO;
    return 1;
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    static ssize_t (*real)(int, const void *, size_t, off64_t);
    if (!real) real = dlsym(RTLD_NEXT, "pwrite64");
    return struck(fd) ? -1 : real(fd, data, size, at);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    static ssize_t (*real)(int, const void *, size_t, off_t);
    if (!real) real = dlsym(RTLD_NEXT, "pwrite");
    return struck(fd) ? -1 : real(fd, data, size, at);
}
