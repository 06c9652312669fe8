/* SPDX-License-Identifier: Apache-2.0 */
/* docs - an option table as a Markdown table. */
#include "config/docs.h"

#include "config/units.h"

static const char *type_name(const struct ob_opt *opt)
{
    switch (opt->type) {
    case OB_OPT_BOOL:
        return "true or false";
    case OB_OPT_INT:
        return "number";
    case OB_OPT_MS:
        return "duration";
    case OB_OPT_BYTES:
        return "size";
    case OB_OPT_PCT:
        return "share";
    case OB_OPT_ENUM:
        return "choice";
    case OB_OPT_MAP:
        return "map of text";
    case OB_OPT_LIST:
        return "list of text";
    case OB_OPT_NODE:
    case OB_OPT_GROUP:
        return "section";
    default:
        return "text";
    }
}

/* `|` ends a cell in Markdown. */
static void put_cell(struct ob_buf *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '|')
            ob_buf_char(out, '\\');
        ob_buf_char(out, *text);
    }
}

static void put_allowed(struct ob_buf *out, const struct ob_opt *opt)
{
    char lo[OB_UNITS_MAX], hi[OB_UNITS_MAX];
    const char *choices = opt->choices ? opt->choices : "";
    if (opt->type == OB_OPT_ENUM) {
        while (*choices) {
            size_t n = strcspn(choices, "|");
            ob_buf_printf(out, "`%.*s`", (int)n, choices);
            choices += n + (choices[n] == '|');
            ob_buf_c(out, *choices ? ", " : "");
        }
    } else if (opt->max >= INT64_MAX / 2) { /* no limit that anyone could reach */
        ob_buf_printf(out, "at least %s", ob_units_show(opt->type, opt->min, lo));
    } else if (opt->min != 0 || opt->max != 0) {
        ob_buf_printf(out, "%s to %s", ob_units_show(opt->type, opt->min, lo),
                      ob_units_show(opt->type, opt->max, hi));
    }
}

static void put_row(struct ob_buf *out, const struct ob_opt *opt)
{
    ob_buf_printf(out, "| `%s` | %s | ", opt->name, type_name(opt));
    if (opt->flags & OB_OPT_REQUIRED)
        ob_buf_c(out, "required");
    else if (opt->def)
        ob_buf_printf(out, "`%s`", opt->def);
    ob_buf_c(out, " | ");
    put_allowed(out, opt);
    ob_buf_c(out, " | ");
    put_cell(out, opt->help ? opt->help : "");
    if (opt->flags & OB_OPT_SECRET)
        ob_buf_printf(out, " Secret; `%s_file` is accepted in its place.", opt->name);
    if (opt->flags & OB_OPT_RELOAD)
        ob_buf_c(out, " Taken anew on SIGHUP.");
    ob_buf_c(out, " |\n");
}

void ob_opt_docs(struct ob_buf *out, const struct ob_opt *table)
{
    if (!table || table->type == OB_OPT_END) {
        ob_buf_c(out, "There are no options.\n");
        return;
    }
    ob_buf_c(out, "| option | type | default | allowed | what it does |\n|---|---|---|---|---|\n");
    for (; table->type != OB_OPT_END; table++)
        put_row(out, table);
}
