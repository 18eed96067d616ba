/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef struct Log {
        int in, child; /* ends of the pipe */
        uint64_t left;
        bool full, deaf; /* over the limit; nobody takes any more */
        char *buffer;
        unsigned at, used;
} Log;

/* A pipe whose other end, CHILD, is for the command. Returns 0 or a negative errno. */
int log_open(Log *l, uint64_t limit);
/* poll() events of stdout and of the pipe that are of interest now. */
short log_events_out(const Log *l);
short log_events_in(const Log *l);
/* Takes and gives what goes without waiting. */
void log_turn(Log *l);
/* The same for what is there, waiting a little for who takes it; for the end. */
void log_drain(Log *l);
