"""Events are append-only: the database refuses to change or delete them."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("audit", "0001_initial")]

    operations = [
        migrations.RunSQL(
            sql="""
            CREATE FUNCTION audit_event_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
                RAISE EXCEPTION 'audit events are append-only';
            END $$;
            CREATE TRIGGER audit_event_append_only BEFORE UPDATE OR DELETE ON audit_event
                FOR EACH ROW EXECUTE FUNCTION audit_event_is_append_only();
            """,
            reverse_sql="""
            DROP TRIGGER audit_event_append_only ON audit_event;
            DROP FUNCTION audit_event_is_append_only();
            """,
        )
    ]
