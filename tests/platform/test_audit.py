import psycopg
import pytest
from django.db import DatabaseError, connection, transaction

from rackforge.audit.models import Event
from rackforge.audit.services import CHANNEL, record


@pytest.mark.django_db
def test_events_cannot_be_changed_or_deleted() -> None:
    event = record(actor="ann", action="x.do", object_type="x", object_id="1", after={"a": 1})
    for attempt in (lambda: Event.objects.update(actor="bob"), lambda: Event.objects.all().delete()):
        with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
            attempt()
    event.refresh_from_db()
    assert (event.actor, event.after) == ("ann", {"a": 1})


@pytest.mark.django_db(transaction=True, serialized_rollback=False)
def test_listeners_hear_at_commit_and_never_of_a_rollback() -> None:
    params = connection.get_connection_params()
    listener = psycopg.connect(dbname=params["dbname"], host=params["host"], user=params["user"], autocommit=True)
    with listener:
        listener.execute(f"LISTEN {CHANNEL}")
        with pytest.raises(RuntimeError), transaction.atomic():
            record(actor="ann", action="lost", object_type="x", object_id="1")
            raise RuntimeError
        with transaction.atomic():
            kept = record(actor="ann", action="kept", object_type="x", object_id="1")
            assert list(listener.notifies(timeout=0.05)) == []
        heard = list(listener.notifies(timeout=5, stop_after=1))
        assert [note.payload for note in heard] == [str(kept.pk)]
