/* SPDX-License-Identifier: Apache-2.0 */
/* clock - the system's clock, and times as RFC 3339 text. */
#include "core/clock.h"

#include <stdbool.h>
#include <time.h>

#define US_PER_S INT64_C(1000000)
#define S_PER_DAY INT64_C(86400)
#define DAYS_PER_ERA INT64_C(146097)       /* 400 years */
#define DAYS_TO_1970 INT64_C(719468)       /* from 0000-03-01 */
#define WALL_LEAST_S INT64_C(-62167219200) /* 0000-01-01 */
#define WALL_MOST_S INT64_C(253402300799)  /* 9999-12-31T23:59:59 */

static int64_t now_us(clockid_t id)
{
    struct timespec ts;

    clock_gettime(id, &ts);
    return (int64_t)ts.tv_sec * US_PER_S + ts.tv_nsec / 1000;
}

static int64_t system_mono_us(void *user)
{
    (void)user;
    return now_us(CLOCK_MONOTONIC);
}

static int64_t system_wall_us(void *user)
{
    (void)user;
    return now_us(CLOCK_REALTIME);
}

const struct ob_clock ob_clock_system = {system_mono_us, system_wall_us, NULL};

static void put_digits(char *out, int64_t v, int n)
{
    while (n-- > 0) {
        out[n] = (char)('0' + v % 10);
        v /= 10;
    }
}

/* Years run from March here: the day that leap years add is then the last of the year. */
static void civil(int64_t days, int64_t *year, int64_t *month, int64_t *day)
{
    int64_t d = days + DAYS_TO_1970;
    int64_t era = (d >= 0 ? d : d - (DAYS_PER_ERA - 1)) / DAYS_PER_ERA;
    int64_t doe = d - era * DAYS_PER_ERA;
    int64_t yoe = (doe - doe / 1460 + doe / 36524 - doe / 146096) / 365;
    int64_t doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    int64_t m = (5 * doy + 2) / 153;

    *day = doy - (153 * m + 2) / 5 + 1;
    *month = m < 10 ? m + 3 : m - 9;
    *year = yoe + era * 400 + (*month <= 2);
}

static int64_t days_of(int64_t year, int64_t month, int64_t day)
{
    int64_t y = month <= 2 ? year - 1 : year;
    int64_t era = (y >= 0 ? y : y - 399) / 400;
    int64_t yoe = y - era * 400;
    int64_t doy = (153 * (month > 2 ? month - 3 : month + 9) + 2) / 5 + day - 1;

    return era * DAYS_PER_ERA + yoe * 365 + yoe / 4 - yoe / 100 + doy - DAYS_TO_1970;
}

/* Times outside the years 0 to 9999 have no such text: the nearest that has is given. */
size_t ob_rfc3339(int64_t wall_us, char out[OB_RFC3339_MAX])
{
    int64_t us = wall_us % US_PER_S, s = wall_us / US_PER_S;
    int64_t days, year, month, day;

    if (us < 0) {
        us += US_PER_S;
        s--;
    }
    if (s < WALL_LEAST_S) {
        s = WALL_LEAST_S;
        us = 0;
    } else if (s > WALL_MOST_S) {
        s = WALL_MOST_S;
        us = US_PER_S - 1;
    }
    days = s / S_PER_DAY - (s % S_PER_DAY < 0);
    s -= days * S_PER_DAY;
    civil(days, &year, &month, &day);
    put_digits(out, year, 4);
    put_digits(out + 5, month, 2);
    put_digits(out + 8, day, 2);
    put_digits(out + 11, s / 3600, 2);
    put_digits(out + 14, s / 60 % 60, 2);
    put_digits(out + 17, s % 60, 2);
    put_digits(out + 20, us / 1000, 3);
    out[4] = out[7] = '-';
    out[10] = 'T';
    out[13] = out[16] = ':';
    out[19] = '.';
    out[23] = 'Z';
    out[24] = '\0';
    return 24;
}

/* n digits at p, or -1. */
static int64_t digits(const char *p, int n)
{
    int64_t v = 0;

    for (int i = 0; i < n; i++) {
        if (p[i] < '0' || p[i] > '9')
            return -1;
        v = v * 10 + (p[i] - '0');
    }
    return v;
}

static int64_t month_days(int64_t year, int64_t month)
{
    static const signed char days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    bool leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;

    return days[month - 1] + (month == 2 && leap);
}

/* "Z" or "+hh:mm" in exactly n bytes. Minutes east of UTC. */
static int parse_offset(const char *p, size_t n, int64_t *minutes)
{
    int64_t h, m;

    *minutes = 0;
    if (n == 1 && (*p == 'Z' || *p == 'z'))
        return 0;
    if (n != 6 || (*p != '+' && *p != '-') || p[3] != ':')
        return -1;
    h = digits(p + 1, 2);
    m = digits(p + 4, 2);
    if (h < 0 || h > 23 || m < 0 || m > 59)
        return -1;
    *minutes = (*p == '-' ? -1 : 1) * (h * 60 + m);
    return 0;
}

/* "2026-02-03T04:05:06" as seconds, as if it were UTC. *leap: the second was 60. */
static int parse_local(const char *p, int64_t *seconds, bool *leap)
{
    int64_t year = digits(p, 4), month = digits(p + 5, 2), day = digits(p + 8, 2);
    int64_t h = digits(p + 11, 2), m = digits(p + 14, 2), s = digits(p + 17, 2);

    if (p[4] != '-' || p[7] != '-' || p[13] != ':' || p[16] != ':')
        return -1;
    if (p[10] != 'T' && p[10] != 't' && p[10] != ' ')
        return -1;
    if (year < 0 || month < 1 || month > 12 || day < 1 || day > month_days(year, month))
        return -1;
    if (h < 0 || h > 23 || m < 0 || m > 59 || s < 0 || s > 60)
        return -1;
    *leap = s == 60;
    *seconds = days_of(year, month, day) * S_PER_DAY + h * 3600 + m * 60 + s;
    return 0;
}

int ob_rfc3339_parse(const char *p, size_t n, int64_t *wall_us)
{
    int64_t seconds, us = 0, minutes, scale = US_PER_S / 10;
    size_t at = 19;
    bool leap;

    if (n < 20 || parse_local(p, &seconds, &leap) != 0)
        return -1;
    if (p[at] == '.') {
        size_t first = ++at;

        for (; at < n && p[at] >= '0' && p[at] <= '9'; at++, scale /= 10)
            us += (p[at] - '0') * scale; /* what is finer than 1 us is cut off */
        if (at == first)
            return -1;
    }
    if (at >= n || parse_offset(p + at, n - at, &minutes) != 0)
        return -1;
    seconds -= minutes * 60;
    if (leap && seconds % S_PER_DAY != 0)
        return -1; /* a leap second is 23:59:60 in UTC, and counts as the second after it */
    *wall_us = seconds * US_PER_S + us;
    return 0;
}
