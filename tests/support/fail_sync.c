/* LD_PRELOAD: fsync and fdatasync fail with EIO while the file that FAIL_SYNC names is there. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

static int unless_failing(const char *name, int descriptor)
{
    int (*call)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    const char *flag = getenv("FAIL_SYNC");
    if (flag && access(flag, F_OK) == 0) {
        errno = EIO;
        return -1;
    }
    return call(descriptor);
}

int fsync(int descriptor) { return unless_failing("fsync", descriptor); }

int fdatasync(int descriptor) { return unless_failing("fdatasync", descriptor); }
