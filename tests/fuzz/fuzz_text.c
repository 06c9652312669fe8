/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_text - bytes of any kind through the escaper, UTF-8, base64, globs, times and distances.
 *
 * Input: bytes. For globs the first line is the pattern and the rest the text. */
#include "core/clock.h"
#include "core/jscan.h"
#include "core/json.h"
#include "fuzz.h"

static void check_escape(struct ob_str bytes)
{
    struct ob_buf text, back;
    struct ob_json j;

    ob_buf_init(&text, 0);
    ob_buf_init(&back, 0);
    ob_json_init(&j, &text);
    ob_json_str(&j, bytes);
    FUZZ_CHECK(!text.failed && ob_utf8_valid(ob_buf_view(&text)));
    FUZZ_CHECK(ob_json_check(ob_buf_view(&text), NULL, NULL) == OB_OK);
    ob_jscan_unescape(&back, (struct ob_str){text.p + 1, text.n - 2});
    FUZZ_CHECK(ob_utf8_valid(bytes) == ob_str_eq(bytes, ob_buf_view(&back)));
    ob_buf_reset(&back);
    ob_jscan_unescape(&back, bytes); /* not from the scanner: any bytes are fine */
    FUZZ_CHECK(!back.failed && back.n <= 3 * bytes.n);
    ob_buf_reset(&text);
    ob_base64(&text, bytes);
    FUZZ_CHECK(text.n == (bytes.n + 2) / 3 * 4);
    ob_buf_clear(&text);
    ob_buf_clear(&back);
}

static void check_time(struct ob_str bytes)
{
    char text[OB_RFC3339_MAX];
    int64_t us, again;

    if (ob_rfc3339_parse(bytes.p, bytes.n, &us) != 0)
        return;
    if (us < INT64_C(-62167219200000000) || us > INT64_C(253402300799999999))
        return; /* an offset can lead out of the years that have a text */
    FUZZ_CHECK(ob_rfc3339(us, text) == 24);
    FUZZ_CHECK(ob_rfc3339_parse(text, 24, &again) == 0);
    FUZZ_CHECK(us - again >= 0 && us - again < 1000); /* the text has milliseconds */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct ob_str all = {(const char *)data, n}, pattern = all, text = {"", 0};
    const char *line_end = n ? memchr(data, '\n', n) : NULL;
    unsigned ab, ba;

    if (line_end) {
        pattern.n = (size_t)(line_end - all.p);
        text = (struct ob_str){line_end + 1, n - pattern.n - 1};
    }
    check_escape(all);
    check_time(pattern);
    if (ob_glob(pattern, text))
        FUZZ_CHECK(ob_glob(OB_STR("*"), text));
    ab = ob_distance(pattern, text, 3);
    ba = ob_distance(text, pattern, 3);
    FUZZ_CHECK(ab == ba && ab <= 4 && (ab == 0) == ob_str_eq(pattern, text));
    return 0;
}
