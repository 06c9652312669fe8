/* SPDX-License-Identifier: Apache-2.0 */
/* drivers - the registry: one line per driver. */
#include "relay/drivers.h"

#include "ob_build.h"

/* A driver exports its descriptor and nothing else. */
#if OB_HAVE_SQLITE
extern const struct ob_source_driver ob_source_sqlite;
#endif
#if OB_HAVE_POSTGRES
extern const struct ob_source_driver ob_source_postgres;
#endif
#if OB_HAVE_MONGODB
extern const struct ob_source_driver ob_source_mongodb;
#endif
#if OB_HAVE_KAFKA
extern const struct ob_sink_driver ob_sink_kafka;
#endif
#if OB_HAVE_NATS
extern const struct ob_sink_driver ob_sink_nats;
#endif
#if OB_HAVE_RABBITMQ
extern const struct ob_sink_driver ob_sink_rabbitmq;
#endif

const struct ob_source_driver *const ob_source_drivers[] = {
#if OB_HAVE_SQLITE
    &ob_source_sqlite,
#endif
#if OB_HAVE_POSTGRES
    &ob_source_postgres,
#endif
#if OB_HAVE_MONGODB
    &ob_source_mongodb,
#endif
    NULL,
};

const struct ob_sink_driver *const ob_sink_drivers[] = {
    &ob_sink_file,
    &ob_sink_stdout,
    &ob_sink_null,
#if OB_HAVE_KAFKA
    &ob_sink_kafka,
#endif
#if OB_HAVE_NATS
    &ob_sink_nats,
#endif
#if OB_HAVE_RABBITMQ
    &ob_sink_rabbitmq,
#endif
    NULL,
};

const struct ob_driver_absent ob_source_absent[] = {
#if !OB_HAVE_SQLITE
    {"sqlite", "it was built without SQLite; install its development files and build with "
               "-Dsqlite=enabled"},
#endif
#if !OB_HAVE_POSTGRES
    {"postgres", "it was built without PostgreSQL; install libpq's development files and build "
                 "with -Dpostgres=enabled"},
#endif
#if !OB_HAVE_MONGODB
    {"mongodb", "it was built without MongoDB; install libmongoc's development files and build "
                "with -Dmongodb=enabled"},
#endif
    {NULL, NULL},
};

const struct ob_driver_absent ob_sink_absent[] = {
#if !OB_HAVE_KAFKA
    {"kafka", "it was built without Kafka; install librdkafka's development files and build with "
              "-Dkafka=enabled"},
#endif
#if !OB_HAVE_NATS
    {"nats", "it was built without NATS; install the development files of cnats and build with "
             "-Dnats=enabled"},
#endif
#if !OB_HAVE_RABBITMQ
    {"rabbitmq", "it was built without RabbitMQ; install the development files of librabbitmq and "
                 "build with -Drabbitmq=enabled"},
#endif
    {NULL, NULL},
};
