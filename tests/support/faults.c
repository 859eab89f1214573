/* Fails or ends what a driver writes below a directory, to databases and to any other file: preloaded into it.

   FAULT_ROOT: the directory. FAULT_AT: the number of the write that is struck, from 1. FAULT_KIND: "eio" fails that one, "enospc"
   that one and all that follow that take room, "kill" kills the process at it. FAULT_COUNT: a file that gets a line for each write
   that comes so far, what it is and to which file. They are read when the process begins, or by faults_arm, and what it starts has
   none of them. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static long count, at;
static char kind[16], counted[4096], root[4096];

static void take(const char *name, char *into, size_t size) {
    const char *value = getenv(name);
    snprintf(into, size, "%s", value ? value : "");
    unsetenv(name);
}

__attribute__((constructor)) void faults_arm(void) {
    char number[32];
    take("FAULT_KIND", kind, sizeof kind);
    take("FAULT_COUNT", counted, sizeof counted);
    take("FAULT_ROOT", root, sizeof root);
    take("FAULT_AT", number, sizeof number);
    at = atol(number);
}

#define REAL(name) \
    static __typeof__(&name) real; \
    if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

static int struck(const char *what, const char *path, int takes_room) {
    if (!root[0] || strncmp(path, root, strlen(root)) != 0) return 0;
    long number = __atomic_add_fetch(&count, 1, __ATOMIC_SEQ_CST);
    if (counted[0]) {
        char line[4200];
        int size = snprintf(line, sizeof line, "%s %s\n", what, path + strlen(root));
        int file = open(counted, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        if (write(file, line, size) < 0) abort();
        close(file);
    }
    int full = strcmp(kind, "enospc") == 0;
    if (!kind[0] || (full ? number < at || !takes_room : number != at)) return 0;
    if (strcmp(kind, "kill") == 0) kill(getpid(), SIGKILL);
    errno = full ? ENOSPC : EIO;
    return 1;
}

static int struck_file(const char *what, int fd, int takes_room) {
    char link[64], path[4096];
    if (!root[0]) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n < 0) return 0;
    path[n] = 0;
    return struck(what, path, takes_room);
}

static int struck_new(const char *path, int flags) {
    return root[0] && flags & O_CREAT && access(path, F_OK) != 0 && struck("create", path, 1);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t place) {
    REAL(pwrite64);
    return struck_file("write", fd, 1) ? -1 : real(fd, data, size, place);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t place) {
    REAL(pwrite);
    return struck_file("write", fd, 1) ? -1 : real(fd, data, size, place);
}

ssize_t write(int fd, const void *data, size_t size) {
    REAL(write);
    return struck_file("write", fd, 1) ? -1 : real(fd, data, size);
}

int ftruncate64(int fd, off64_t size) {
    REAL(ftruncate64);
    return struck_file("truncate", fd, 0) ? -1 : real(fd, size);
}

int ftruncate(int fd, off_t size) {
    REAL(ftruncate);
    return struck_file("truncate", fd, 0) ? -1 : real(fd, size);
}

int fsync(int fd) {
    REAL(fsync);
    return struck_file("sync", fd, 0) ? -1 : real(fd);
}

int fdatasync(int fd) {
    REAL(fdatasync);
    return struck_file("sync", fd, 0) ? -1 : real(fd);
}

int mkdir(const char *path, mode_t mode) {
    REAL(mkdir);
    return root[0] && access(path, F_OK) != 0 && struck("mkdir", path, 1) ? -1 : real(path, mode);
}

int rename(const char *from, const char *to) {
    REAL(rename);
    return struck("rename", to, 0) ? -1 : real(from, to);
}

int unlink(const char *path) {
    REAL(unlink);
    return root[0] && access(path, F_OK) == 0 && struck("unlink", path, 0) ? -1 : real(path);
}

static mode_t mode_of(int flags, va_list rest) { return flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; }

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        REAL(name); \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode = mode_of(flags, rest); \
        va_end(rest); \
        return struck_new(path, flags) ? -1 : real(path, flags, mode); \
    }

OPEN(open)
OPEN(open64)
