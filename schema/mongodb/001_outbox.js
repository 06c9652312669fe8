// The collections of Outbox in MongoDB. Running it again changes nothing:
//
//   outbox schema --print | mongosh "mongodb://127.0.0.1/shop?replicaSet=rs0"
//
// Each statement begins at the start of a line with db. and ends with ); and its arguments are plain JSON: `outbox schema --apply`
// reads this text too, leaves out what is there, and puts the configured name in place of outbox_events.

// Events: written by the application in its own transactions. docs/sources/mongodb.md tells what each field means.
db.createCollection("outbox_events", {
  "validationLevel": "moderate",
  "validationAction": "error",
  "validator": {"$jsonSchema": {
    "bsonType": "object",
    "required": ["_id", "seq", "type", "status", "created_at"],
    "properties": {
      "_id": {"bsonType": "string", "minLength": 1, "maxLength": 63},
      "seq": {"bsonType": "timestamp"},
      "type": {"bsonType": "string", "minLength": 1},
      "aggregate_type": {"bsonType": ["string", "null"]},
      "aggregate_id": {"bsonType": ["string", "null"]},
      "key": {"bsonType": ["string", "null"]},
      "tenant": {"bsonType": ["string", "null"]},
      "topic": {"bsonType": ["string", "null"]},
      "payload_kind": {"enum": ["json", "text", "bytes", null]},
      "headers": {"bsonType": ["object", "string", "null"]},
      "metadata": {"bsonType": ["object", "string", "null"]},
      "entity_version": {"bsonType": ["int", "long", "null"]},
      "schema_version": {"bsonType": ["int", "long", "null"]},
      "max_attempts": {"bsonType": ["int", "long", "null"]},
      "created_at": {"bsonType": "date"},
      "status": {"enum": ["pending", "processing", "published", "failed"]}
    },
    "anyOf": [
      {"required": ["key"], "properties": {"key": {"bsonType": "string", "minLength": 1}}},
      {"properties": {"aggregate_id": {"enum": [null, ""]}}}
    ]
  }}
});
db.getCollection("outbox_events").createIndex({"status": 1, "seq": 1}, {"name": "status_seq"});
db.getCollection("outbox_events").createIndex({"key": 1, "seq": 1, "status": 1}, {"name": "key_seq"});
db.getCollection("outbox_events").createIndex({"published_at": 1}, {"name": "published"});

// Turns of keys, for writers that emit before they change anything else of the key.
db.createCollection("outbox_events_keys");

// The one worker of the collection: owner, epoch, counters, paused.
db.createCollection("outbox_events_lease");

// Events that wait, by reference, and one document per key that waits.
db.createCollection("outbox_events_parked");
db.getCollection("outbox_events_parked").createIndex({"ref": 1}, {"name": "ref", "unique": true});
db.getCollection("outbox_events_parked").createIndex({"hash": 1, "_id": 1}, {"name": "hash_n"});
db.createCollection("outbox_events_held");
db.getCollection("outbox_events_held").createIndex({"blocked_dest": 1, "due_at": 1}, {"name": "dest_due"});

// Dead events, by reference.
db.createCollection("outbox_events_dead");
db.getCollection("outbox_events_dead").createIndex({"ref": 1}, {"name": "ref"});
db.getCollection("outbox_events_dead").createIndex({"state": 1, "_id": 1}, {"name": "state_n"});
db.getCollection("outbox_events_dead").createIndex({"hash": 1, "_id": 1}, {"name": "hash_hold", "partialFilterExpression": {"hold": true}});
db.getCollection("outbox_events_dead").createIndex({"dlt": 1, "_id": 1}, {"name": "dlt", "partialFilterExpression": {"dlt": true}});
