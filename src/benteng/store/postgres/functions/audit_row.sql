-- keyed, audit_row: an audit record as its readers see it.
--
-- Promise   digests are keyed (HMAC-SHA256 by the installation's key, as redact.keyed), so that no reader can confirm a guess.
--           Body and leaf are composed from these columns by benteng.audit.
create or replace function benteng.keyed(p_digest bytea) returns text
language sql stable
as $$
  select coalesce(
    left(encode(sha256(i.pad_outer || sha256(i.pad_inner || convert_to(encode(p_digest, 'hex'), 'utf8'))), 'hex'), 32), '')
  from benteng.installation i
$$;

create or replace view benteng.audit_row as
  select
    a.id, coalesce(o.seq, 0) as seq, benteng.instant(a.at) as at_us, a.event, coalesce(a.job_id::text, '') as job_text, a.type,
    a.policy_sha256, a.state_from, a.state_to, a.attempt, a.fence, a.origin, a.actor, a.request_id,
    benteng.keyed(a.operation_key) as operation, benteng.keyed(a.payload_sha256) as payload, a.summary, a.resources,
    a.worker, a.login, a.rule, a.reason, a.detail, encode(a.salt, 'hex') as salt, a.job_id
  from benteng.audit a
  left join benteng.audit_order o on o.id = a.id;
