/* LD_PRELOAD: fsync and fdatasync take SLOW_SYNC_US microseconds longer, as on an SD card. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

static int slowly(const char *name, int descriptor)
{
    int (*call)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    const char *us = getenv("SLOW_SYNC_US");
    usleep(us ? (useconds_t)atol(us) : 0);
    return call(descriptor);
}

int fsync(int descriptor) { return slowly("fsync", descriptor); }

int fdatasync(int descriptor) { return slowly("fdatasync", descriptor); }
