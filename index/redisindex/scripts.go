package redisindex

import (
	"context"
	"crypto/sha1"
	"encoding/hex"

	"github.com/redis/go-redis/v9"
)

// The scripts do what one command cannot: they replace a part of a value if the rest has not
// changed. They parse sections, and the first bytes of rows; no keys and no holders.

// A script is a script and its name at servers.
type script struct{ text, sha string }

func newScript(text string) *script {
	sum := sha1.Sum([]byte(text))
	return &script{text, hex.EncodeToString(sum[:])}
}

// in adds a call to a pipeline. Servers that may not know the script get its text.
func (s *script) in(ctx context.Context, p redis.Pipeliner, text bool, keys []string, args ...any) *redis.Cmd {
	if text {
		return p.Eval(ctx, s.text, keys, args...)
	}
	return p.EvalSha(ctx, s.sha, keys, args...)
}

// putSections puts sections of a writer into buckets of a part, and replaces older ones of the
// writer, but no newer ones: a command may come late over a connection that was given up. A
// section without a body stays for a while, for the same reason. It also deletes the sections
// of dead writers, and foreign values. It returns how many sections it has put.
//
// KEYS: buckets. ARGV: writer, seq, TTL in ms, dead writers, one after the other; the body for
// each bucket.
var putSections = newScript(`
local me, seq, gone = ARGV[1], ARGV[2], ARGV[4]
local mylo, myhi = struct.unpack('<I4I4', seq)
local values, put = redis.call('MGET', unpack(KEYS)), 0
for i, key in ipairs(KEYS) do
	local value, body = values[i] or '', ARGV[4 + i]
	local kept, live, newer = 'K\1', false, false
	if string.sub(value, 1, 2) == 'K\1' then
		local at, size = 3, #value
		while at + 19 <= size do
			local lo, hi, n = struct.unpack('<I4I4I4', value, at + 8)
			local last = at + 19 + n
			if last > size then break end
			local writer = string.sub(value, at, at + 7)
			if writer == me then
				newer = newer or hi > myhi or hi == myhi and lo > mylo
			else
				local left = false
				for j = 1, #gone, 8 do
					left = left or writer == string.sub(gone, j, j + 7)
				end
				if not left then
					kept = kept .. string.sub(value, at, last)
					live = live or n > 0
				end
			end
			at = last + 1
		end
	end
	if not newer then
		local ttl = ARGV[3]
		if #body == 0 and not live then ttl = math.min(ttl, 60000) end
		redis.call('SET', key, kept .. me .. seq .. struct.pack('<I4', #body) .. body, 'PX', ttl)
		put = put + 1
	end
end
return put
`)

// takeSections removes the sections of some writers from a bucket.
//
// KEYS: the bucket. ARGV: writers, one after the other.
var takeSections = newScript(`
local value = redis.pcall('GET', KEYS[1])
if type(value) ~= 'string' or string.sub(value, 1, 2) ~= 'K\1' then return 0 end
local kept, at = {'K\1'}, 3
while at + 19 <= #value do
	local _, _, n = struct.unpack('<I4I4I4', value, at + 8)
	local last = at + 19 + n
	if last > #value then break end
	local gone = false
	for i = 1, #ARGV[1], 8 do
		gone = gone or string.sub(value, at, at + 7) == string.sub(ARGV[1], i, i + 7)
	end
	if not gone then kept[#kept + 1] = string.sub(value, at, last) end
	at = last + 1
end
if #kept == 1 then
	redis.call('UNLINK', KEYS[1])
else
	redis.call('SET', KEYS[1], table.concat(kept), 'KEEPTTL')
end
return 1
`)

// leaveToken records the progress of a writer in a part of the keys, and that it is alive. It
// returns 0 if the part has none of the accepted notes: then the server has lost writes.
//
// KEYS: token, lease. ARGV: the accepted notes, 8 bytes each; 1 if there may be none; the new
// note; TTL and lease in ms, lease 0: it is not renewed.
var leaveToken = newScript(`
local now, known = redis.call('GET', KEYS[1]), false
if not now then
	known = ARGV[2] == '1'
elseif now == ARGV[3] then
	known = true
else
	for i = 1, #ARGV[1], 8 do
		known = known or now == string.sub(ARGV[1], i, i + 7)
	end
end
if not known then return 0 end
redis.call('SET', KEYS[1], ARGV[3], 'PX', ARGV[4])
if ARGV[5] ~= '0' then redis.call('SET', KEYS[2], '1', 'PX', ARGV[5]) end
return 1
`)

// late begins a script that writes rows for a commit. It ends the script if the writer's token
// is newer than the commit: then the command came late over a connection that was given up.
const late = `
local token = redis.call('GET', KEYS[3])
if token and #ARGV[3] > 0 then
	local lo, hi = struct.unpack('<I4I4', token)
	local mylo, myhi = struct.unpack('<I4I4', ARGV[3])
	if hi > myhi or hi == myhi and lo > mylo then return {} end
end
`

// writeRows writes rows of a registry, and the progress of their writer. It returns for each 1,
// or 0 if there is no row and none was given, or the present row, if it is another writer's.
//
// KEYS: registry, cursors, the writer's token. ARGV: writer, beginning of the version, seq,
// TTL in ms; for each row: field, row, cursor, the writers that may be replaced, and the
// cursor that they have left, "*" for any. "" is nothing.
var writeRows = newScript(late + `
local fields, rows, cursors, out = {}, {}, {}, {}
for i = 5, #ARGV, 5 do fields[#fields + 1] = ARGV[i] end
local there = redis.call('HMGET', KEYS[1], unpack(fields))
for n, field in ipairs(fields) do
	local row, cursor, from, left = unpack(ARGV, 5 * n + 1, 5 * n + 4)
	local now = there[n]
	if now and #now < 9 then now = false end -- it is no row
	local owner = now and string.sub(now, 1, 8)
	local mine = not now or owner == ARGV[1]
	for j = 1, #from, 8 do
		if not mine and owner == string.sub(from, j, j + 7) then
			mine = left == '*' or (redis.call('HGET', KEYS[2], field) or '') == left
		end
	end
	if not mine then
		out[n] = now
	elseif row == '' and not now then
		out[n] = 0
	else
		if row ~= '' then
			rows[#rows + 1] = field
			rows[#rows + 1] = row
		end
		if cursor ~= '' then
			cursors[#cursors + 1] = field
			cursors[#cursors + 1] = cursor
		end
		out[n] = 1
	end
end
if #rows > 0 then
	redis.call('HSET', KEYS[1], 'v', ARGV[2] .. table.concat(redis.call('TIME'), '.'), unpack(rows))
end
if #cursors > 0 then redis.call('HSET', KEYS[2], unpack(cursors)) end
redis.call('PEXPIRE', KEYS[1], ARGV[4])
redis.call('PEXPIRE', KEYS[2], ARGV[4])
return out
`)

// dropRows deletes the rows of a writer.
//
// KEYS: registry, cursors, the writer's token. ARGV: writer, beginning of the version, seq,
// fields. Without a seq the command may come at any time.
var dropRows = newScript(late + `
local written = false
for i = 4, #ARGV do
	local now = redis.call('HGET', KEYS[1], ARGV[i])
	if now and string.sub(now, 1, 8) == ARGV[1] then
		if not written then
			-- First, because a hash without fields goes, and its TTL with it.
			redis.call('HSET', KEYS[1], 'v', ARGV[2] .. table.concat(redis.call('TIME'), '.'))
			written = true
		end
		redis.call('HDEL', KEYS[1], ARGV[i])
		redis.call('HDEL', KEYS[2], ARGV[i])
	end
end
return 1
`)
