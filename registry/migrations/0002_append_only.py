"""What is published or has happened never changes: the database refuses it, whoever asks."""

from django.db import migrations

EVENTS = ("registry_versionevent", "registry_channelevent")


class Migration(migrations.Migration):
    dependencies = [("registry", "0001_initial")]

    operations = [
        migrations.RunSQL(
            sql="""
            CREATE FUNCTION registry_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
                RAISE EXCEPTION 'rows of % are append-only', TG_TABLE_NAME;
            END $$;
            CREATE FUNCTION registry_version_is_immutable() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
                IF TG_OP = 'DELETE' THEN
                    RAISE EXCEPTION 'versions are never deleted';
                END IF;
                IF (NEW.kernel_id, NEW.version, NEW.digest, NEW.signature_digest, NEW.manifest, NEW.published_by)
                    IS DISTINCT FROM
                   (OLD.kernel_id, OLD.version, OLD.digest, OLD.signature_digest, OLD.manifest, OLD.published_by) THEN
                    RAISE EXCEPTION 'a published version never changes';
                END IF;
                IF OLD.revoked AND NOT NEW.revoked THEN
                    RAISE EXCEPTION 'a revoked version stays revoked';
                END IF;
                RETURN NEW;
            END $$;
            CREATE TRIGGER registry_version_immutable BEFORE UPDATE OR DELETE ON registry_version
                FOR EACH ROW EXECUTE FUNCTION registry_version_is_immutable();
            """
            + "".join(
                f"CREATE TRIGGER {t}_append_only BEFORE UPDATE OR DELETE ON {t} "
                "FOR EACH ROW EXECUTE FUNCTION registry_is_append_only();\n"
                for t in EVENTS
            ),
            reverse_sql="".join(f"DROP TRIGGER {t}_append_only ON {t};\n" for t in EVENTS)
            + """
            DROP TRIGGER registry_version_immutable ON registry_version;
            DROP FUNCTION registry_version_is_immutable();
            DROP FUNCTION registry_is_append_only();
            """,
        )
    ]
