/* Preloaded into a process: writes down, in order, what it does to the files of one folder.
 *
 * EDGEHUB_POWER_ROOT names the folder, EDGEHUB_POWER_LOG the log. Each call that changes a file, a
 * name or what is on stable storage becomes one record; see records.py for the format. The call and
 * its record are made under one lock, so the order of the records is the order of the calls. A sync
 * is two records: only what stands before its beginning is sure to be stored at its end.
 * Records are single appends, so other processes may add theirs (acknowledgements) to the order.
 *
 * Not recorded: memory maps (SQLite maps only the index that it can rebuild), and what would make
 * more durable than is known here (O_SYNC, sync_file_range, sync): a test may fail for that, never
 * pass.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { LINK = 1, WRITE, TRUNCATE, SYNC_BEGIN, SYNC_END, RENAME, UNLINK, MKDIR, ALLOCATE, OPEN };

struct record {
  uint32_t size; /* of the whole record */
  uint32_t kind;
  uint64_t inode;
  int64_t offset; /* for syncs: their number */
  uint64_t time_ns;
  uint32_t path_bytes;
  uint32_t data_bytes;
};

#define TRACKED_MAX 4096

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char root[PATH_MAX];
static size_t root_bytes;
static int log_fd = -1;
static int64_t syncs;
static struct { dev_t device; ino_t inode; } tracked[TRACKED_MAX];
static size_t tracked_count;

static void *next(const char *name) {
  void *found = dlsym(RTLD_NEXT, name);
  if (!found) {
    fprintf(stderr, "power shim: no %s to call\n", name);
    abort();
  }
  return found;
}

#define NEXT(result, name, ...)                       \
  static result (*real)(__VA_ARGS__);                 \
  if (!real) real = (result(*)(__VA_ARGS__))next(name)

__attribute__((constructor)) static void begin(void) {
  const char *folder = getenv("EDGEHUB_POWER_ROOT"), *log = getenv("EDGEHUB_POWER_LOG");
  if (!folder || !log) return;
  if (!realpath(folder, root)) {
    perror("power shim: EDGEHUB_POWER_ROOT");
    abort();
  }
  root_bytes = strlen(root);
  log_fd = (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  if (log_fd < 0) {
    perror("power shim: EDGEHUB_POWER_LOG");
    abort();
  }
}

static void note(uint32_t kind, uint64_t inode, int64_t offset, const char *path,
                 const struct iovec *data, int parts, size_t bytes) {
  struct timespec now;
  struct iovec vector[2 + IOV_MAX / 2];
  struct record record;
  size_t path_bytes = path ? strlen(path) : 0, left = bytes;
  int count = 2;
  clock_gettime(CLOCK_MONOTONIC, &now);
  for (int i = 0; i < parts && left; i++) {
    if (count == (int)(sizeof vector / sizeof *vector)) abort();
    vector[count].iov_base = data[i].iov_base;
    vector[count].iov_len = data[i].iov_len < left ? data[i].iov_len : left;
    left -= vector[count++].iov_len;
  }
  record = (struct record){
      .size = (uint32_t)(sizeof record + path_bytes + bytes),
      .kind = kind,
      .inode = inode,
      .offset = offset,
      .time_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec,
      .path_bytes = (uint32_t)path_bytes,
      .data_bytes = (uint32_t)bytes,
  };
  vector[0] = (struct iovec){&record, sizeof record};
  vector[1] = (struct iovec){(void *)path, path_bytes};
  if (syscall(SYS_writev, log_fd, vector, count) != (long)record.size) abort();
}

/* Gives the path below the root, or NULL for all others. */
static const char *below(int folder, const char *path, char *buffer) {
  char base[PATH_MAX] = "";
  if (log_fd < 0 || !path) return NULL;
  if (*path != '/') {
    if (folder == AT_FDCWD) {
      if (!getcwd(base, sizeof base)) return NULL;
    } else {
      char link[64];
      ssize_t bytes;
      snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
      bytes = readlink(link, base, sizeof base - 1);
      if (bytes < 0) return NULL;
      base[bytes] = 0;
    }
  }
  if (snprintf(buffer, PATH_MAX, "%s%s%s", base, *base ? "/" : "", path) >= PATH_MAX) return NULL;
  if (strncmp(buffer, root, root_bytes) || (buffer[root_bytes] && buffer[root_bytes] != '/'))
    return NULL;
  buffer += root_bytes;
  while (*buffer == '/') buffer++;
  return buffer;
}

static int is_tracked(int fd, uint64_t *inode) {
  struct stat status;
  if (log_fd < 0 || fstat(fd, &status)) return 0;
  *inode = status.st_ino;
  for (size_t i = 0; i < tracked_count; i++)
    if (tracked[i].inode == status.st_ino && tracked[i].device == status.st_dev) return 1;
  return 0;
}

static void track(int fd, const char *path, int is_new) {
  struct stat status;
  uint64_t inode;
  size_t i;
  if (is_tracked(fd, &inode)) {
    if (!path) { /* the inode of a deleted file lives on elsewhere */
      for (i = 0; tracked[i].inode != inode; i++) {}
      tracked[i] = tracked[--tracked_count];
      return;
    }
  } else {
    if (!path || fstat(fd, &status)) return;
    if (tracked_count == TRACKED_MAX) abort();
    tracked[tracked_count].device = status.st_dev;
    tracked[tracked_count++].inode = status.st_ino;
    inode = status.st_ino;
  }
  note(is_new ? LINK : OPEN, inode, 0, path, NULL, 0, 0);
}

static int opened(int folder, const char *path, int flags, mode_t mode) {
  char buffer[PATH_MAX];
  struct stat status;
  const char *name;
  int fd, saved, is_new;
  if (log_fd < 0) return (int)syscall(SYS_openat, folder, path, flags, mode);
  pthread_mutex_lock(&lock);
  name = below(folder, path, buffer);
  is_new = name && (flags & O_CREAT) && fstatat(folder, path, &status, 0) && errno == ENOENT;
  fd = (int)syscall(SYS_openat, folder, path, flags, mode);
  saved = errno;
  if (fd >= 0) {
    uint64_t inode;
    track(fd, name, is_new);
    if (name && (flags & O_TRUNC) && !is_new && is_tracked(fd, &inode))
      note(TRUNCATE, inode, 0, NULL, NULL, 0, 0);
  }
  pthread_mutex_unlock(&lock);
  errno = saved;
  return fd;
}

#define MODE(flags)                                    \
  mode_t mode = 0;                                     \
  if ((flags) & (O_CREAT | (O_TMPFILE & ~O_DIRECTORY))) { \
    va_list list;                                      \
    va_start(list, flags);                             \
    mode = va_arg(list, mode_t);                       \
    va_end(list);                                      \
  }

int open(const char *path, int flags, ...) { MODE(flags) return opened(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) {
  MODE(flags) return opened(AT_FDCWD, path, flags | O_LARGEFILE, mode);
}
int openat(int folder, const char *path, int flags, ...) {
  MODE(flags) return opened(folder, path, flags, mode);
}
int openat64(int folder, const char *path, int flags, ...) {
  MODE(flags) return opened(folder, path, flags | O_LARGEFILE, mode);
}

static ssize_t wrote(uint64_t inode, int64_t offset, const struct iovec *data, int parts,
                     ssize_t result) {
  int saved = errno;
  if (result > 0) note(WRITE, inode, offset, NULL, data, parts, (size_t)result);
  pthread_mutex_unlock(&lock);
  errno = saved;
  return result;
}

static int64_t position(int fd) {
  return fcntl(fd, F_GETFL) & O_APPEND ? lseek(fd, 0, SEEK_END) : lseek(fd, 0, SEEK_CUR);
}

ssize_t write(int fd, const void *data, size_t bytes) {
  NEXT(ssize_t, "write", int, const void *, size_t);
  struct iovec vector = {(void *)data, bytes};
  uint64_t inode;
  int64_t offset;
  pthread_mutex_lock(&lock);
  if (!is_tracked(fd, &inode)) {
    pthread_mutex_unlock(&lock);
    return real(fd, data, bytes);
  }
  offset = position(fd);
  return wrote(inode, offset, &vector, 1, real(fd, data, bytes));
}

ssize_t writev(int fd, const struct iovec *data, int parts) {
  NEXT(ssize_t, "writev", int, const struct iovec *, int);
  uint64_t inode;
  int64_t offset;
  pthread_mutex_lock(&lock);
  if (!is_tracked(fd, &inode)) {
    pthread_mutex_unlock(&lock);
    return real(fd, data, parts);
  }
  offset = position(fd);
  return wrote(inode, offset, data, parts, real(fd, data, parts));
}

ssize_t pwrite64(int fd, const void *data, size_t bytes, off64_t offset) {
  NEXT(ssize_t, "pwrite64", int, const void *, size_t, off64_t);
  struct iovec vector = {(void *)data, bytes};
  uint64_t inode;
  pthread_mutex_lock(&lock);
  if (!is_tracked(fd, &inode)) {
    pthread_mutex_unlock(&lock);
    return real(fd, data, bytes, offset);
  }
  return wrote(inode, offset, &vector, 1, real(fd, data, bytes, offset));
}

ssize_t pwrite(int fd, const void *data, size_t bytes, off_t offset) {
  return pwrite64(fd, data, bytes, offset);
}

ssize_t pwritev64(int fd, const struct iovec *data, int parts, off64_t offset) {
  NEXT(ssize_t, "pwritev64", int, const struct iovec *, int, off64_t);
  uint64_t inode;
  pthread_mutex_lock(&lock);
  if (!is_tracked(fd, &inode)) {
    pthread_mutex_unlock(&lock);
    return real(fd, data, parts, offset);
  }
  return wrote(inode, offset, data, parts, real(fd, data, parts, offset));
}

ssize_t pwritev(int fd, const struct iovec *data, int parts, off_t offset) {
  return pwritev64(fd, data, parts, offset);
}

int ftruncate64(int fd, off64_t bytes) {
  NEXT(int, "ftruncate64", int, off64_t);
  uint64_t inode;
  int result, saved;
  pthread_mutex_lock(&lock);
  result = real(fd, bytes);
  saved = errno;
  if (!result && is_tracked(fd, &inode)) note(TRUNCATE, inode, bytes, NULL, NULL, 0, 0);
  pthread_mutex_unlock(&lock);
  errno = saved;
  return result;
}

int ftruncate(int fd, off_t bytes) { return ftruncate64(fd, bytes); }

int fallocate64(int fd, int mode, off64_t offset, off64_t bytes) {
  NEXT(int, "fallocate64", int, int, off64_t, off64_t);
  uint64_t inode;
  int result, saved;
  pthread_mutex_lock(&lock);
  result = real(fd, mode, offset, bytes);
  saved = errno;
  if (!result && is_tracked(fd, &inode)) {
    if (mode) abort(); /* holes and shifts are not modelled */
    note(ALLOCATE, inode, offset + bytes, NULL, NULL, 0, 0);
  }
  pthread_mutex_unlock(&lock);
  errno = saved;
  return result;
}

int fallocate(int fd, int mode, off_t offset, off_t bytes) {
  return fallocate64(fd, mode, offset, bytes);
}
int posix_fallocate64(int fd, off64_t offset, off64_t bytes) {
  return fallocate64(fd, 0, offset, bytes) ? errno : 0;
}
int posix_fallocate(int fd, off_t offset, off_t bytes) {
  return posix_fallocate64(fd, offset, bytes);
}

static int synced(int fd, int (*real)(int)) {
  uint64_t inode;
  int64_t number = 0;
  int result, saved, is_ours;
  pthread_mutex_lock(&lock);
  is_ours = is_tracked(fd, &inode);
  if (is_ours) note(SYNC_BEGIN, inode, number = ++syncs, NULL, NULL, 0, 0);
  pthread_mutex_unlock(&lock);
  result = real(fd);
  saved = errno;
  if (is_ours && !result) {
    pthread_mutex_lock(&lock);
    note(SYNC_END, inode, number, NULL, NULL, 0, 0);
    pthread_mutex_unlock(&lock);
  }
  errno = saved;
  return result;
}

int fsync(int fd) {
  NEXT(int, "fsync", int);
  return synced(fd, real);
}

int fdatasync(int fd) {
  NEXT(int, "fdatasync", int);
  return synced(fd, real);
}

static int named(uint32_t kind, int folder, const char *path, int other, const char *to,
                 int result) {
  char buffer[PATH_MAX], second[PATH_MAX];
  int saved = errno;
  if (!result) {
    const char *name = below(folder, path, buffer);
    const char *target = to ? below(other, to, second) : NULL;
    if (name && (!to || target)) {
      struct iovec data = {(void *)target, target ? strlen(target) : 0};
      note(kind, 0, 0, name, &data, 1, data.iov_len);
    } else if (to && (name || target)) {
      abort(); /* moves into and out of the folder are not modelled */
    }
  }
  pthread_mutex_unlock(&lock);
  errno = saved;
  return result;
}

int unlink(const char *path) {
  NEXT(int, "unlink", const char *);
  pthread_mutex_lock(&lock);
  return named(UNLINK, AT_FDCWD, path, 0, NULL, real(path));
}
int unlinkat(int folder, const char *path, int flags) {
  NEXT(int, "unlinkat", int, const char *, int);
  pthread_mutex_lock(&lock);
  return named(UNLINK, folder, path, 0, NULL, real(folder, path, flags));
}
int rename(const char *path, const char *to) {
  NEXT(int, "rename", const char *, const char *);
  pthread_mutex_lock(&lock);
  return named(RENAME, AT_FDCWD, path, AT_FDCWD, to, real(path, to));
}
int renameat(int folder, const char *path, int other, const char *to) {
  NEXT(int, "renameat", int, const char *, int, const char *);
  pthread_mutex_lock(&lock);
  return named(RENAME, folder, path, other, to, real(folder, path, other, to));
}
int mkdir(const char *path, mode_t mode) {
  NEXT(int, "mkdir", const char *, mode_t);
  pthread_mutex_lock(&lock);
  return named(MKDIR, AT_FDCWD, path, 0, NULL, real(path, mode));
}
int mkdirat(int folder, const char *path, mode_t mode) {
  NEXT(int, "mkdirat", int, const char *, mode_t);
  pthread_mutex_lock(&lock);
  return named(MKDIR, folder, path, 0, NULL, real(folder, path, mode));
}
