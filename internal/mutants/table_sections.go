package main

var sectionsMutants = table{breaks: "./internal/sections", rows: []mutant{
	{"a section's checksum is not read", "Reader.read", "if s.last != binary.LittleEndian.Uint64(s.front[8:]) {", "if false {", "TestDamage"},
	{"the end is not read", "Reader.Next", "s.err = err\n", "s.err = io.EOF\n", "TestDamage"},
	{"the end counts nothing", "Reader.read", "if len(s.buf) != 8 || binary.LittleEndian.Uint64(s.buf) != s.count {", "if false {", "TestRefused"},
	{"sections have no order", "checksum", "binary.LittleEndian.PutUint64(b[:], before)", "", "TestWrongPlace"},
	{"what a section is has no checksum", "checksum", "copy(b[8:], front[:8])", "", "TestDamage"},
	{"kinds of later versions are skipped", "Reader.Next", "case !optional:", "case !optional && false:", "TestRefused"},
	{"flags of later versions are skipped", "Reader.read", "if flags&^flagOptional != 0 || s.front[2] != 0 || s.front[3] != 0 {", "if false {", "TestRefused"},
	{"another version is read", "NewReader", "v != Version", "false", "TestRefused"},
	{"any length is read", "Reader.read", "if length > Max {", "if false {", "TestRefused"},
	{"a claimed length is allocated", "Reader.readPayload", "room = max(2*room, step)", "room = n", "TestClaimedLength"},
	{"optional is not told", "Writer.put", "front[1] = flagOptional", "", "TestSections"},
	{"a number out of bounds", "Fields.Int", "if v > uint64(most) {", "if false {", "TestFields"},
	{"fields are left", "Fields.End", "if len(f.b) > 0 {", "if false {", "TestFields"},
}}
