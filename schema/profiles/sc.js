// sc: the collection of events and what consumers have seen, for a service that has neither.
//
//   outbox schema --profile sc --print | mongosh "mongodb://127.0.0.1/sc?replicaSet=rs0"
//
// Each statement begins at the start of a line with db. and ends with ); and its arguments are plain JSON: `outbox schema --apply`
// reads this text too, and puts the configured name in place of outbox.

db.createCollection("outbox");
db.getCollection("outbox").createIndex({"status": 1, "created_at": 1}, {"name": "status_created"});
db.getCollection("outbox").createIndex({"status": 1, "published_at": 1}, {"name": "status_published"});
db.getCollection("outbox").createIndex({"locked_until": 1}, {"name": "locked_until"});
db.getCollection("outbox").createIndex({"event_id": 1}, {"name": "event_id"});
db.getCollection("outbox").createIndex({"entity_id": 1, "entity_version": 1}, {"name": "entity_version"});

// Consumers: an event that a group has seen is there, and comes no second time.
db.createCollection("processed_events");
db.getCollection("processed_events").createIndex({"consumer_group": 1, "event_id": 1}, {"name": "group_event", "unique": true});
db.getCollection("processed_events").createIndex({"consumer_group": 1, "entity_id": 1, "entity_version": 1}, {"name": "group_entity"});
