/* Preloaded before libc: the system calls on the database's files fail while the control file's first byte says so.
   n: nothing can be written, the disk is full. e: neither read nor written. f: nothing can be synced. Anything else: all is well. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

static char fault(int fd, const char *faults) {
    static volatile char *control;
    if (!control) {
        const char *path = getenv("OM_DISK_FAULT");
        int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
        void *mapped = file < 0 ? MAP_FAILED : mmap(NULL, 1, PROT_READ, MAP_SHARED, file, 0);
        if (file >= 0) close(file);
        if (mapped == MAP_FAILED) return 0;
        control = mapped;
    }
    char now = *control;
    if (!now || !strchr(faults, now)) return 0;
    char link[64], name[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, name, sizeof name - 1);
    if (length < 0) return 0;
    name[length] = 0;
    const char *found = strstr(name, "om.db");
    if (!found || strstr(found, "-writer") || strstr(found, "-next")) return 0;
    errno = now == 'n' ? ENOSPC : EIO;
    return now;
}

#define REAL(type, name, ...) \
    static type (*real)(__VA_ARGS__); \
    if (!real) real = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

ssize_t pwrite64(int fd, const void *from, size_t count, off64_t at) {
    REAL(ssize_t, "pwrite64", int, const void *, size_t, off64_t);
    return fault(fd, "ne") ? -1 : real(fd, from, count, at);
}
ssize_t pwrite(int fd, const void *from, size_t count, off_t at) {
    REAL(ssize_t, "pwrite", int, const void *, size_t, off_t);
    return fault(fd, "ne") ? -1 : real(fd, from, count, at);
}
ssize_t write(int fd, const void *from, size_t count) {
    REAL(ssize_t, "write", int, const void *, size_t);
    return fault(fd, "ne") ? -1 : real(fd, from, count);
}
int ftruncate64(int fd, off64_t size) {
    REAL(int, "ftruncate64", int, off64_t);
    return fault(fd, "ne") ? -1 : real(fd, size);
}
int ftruncate(int fd, off_t size) {
    REAL(int, "ftruncate", int, off_t);
    return fault(fd, "ne") ? -1 : real(fd, size);
}
ssize_t pread64(int fd, void *into, size_t count, off64_t at) {
    REAL(ssize_t, "pread64", int, void *, size_t, off64_t);
    return fault(fd, "e") ? -1 : real(fd, into, count, at);
}
ssize_t pread(int fd, void *into, size_t count, off_t at) {
    REAL(ssize_t, "pread", int, void *, size_t, off_t);
    return fault(fd, "e") ? -1 : real(fd, into, count, at);
}
int fsync(int fd) {
    REAL(int, "fsync", int);
    return fault(fd, "ef") ? -1 : real(fd);
}
int fdatasync(int fd) {
    REAL(int, "fdatasync", int);
    return fault(fd, "ef") ? -1 : real(fd);
}
