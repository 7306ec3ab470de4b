package main

var namesMutants = table{breaks: "./index/internal/names", rows: []mutant{
	{"a name behind a full line is lost", "Table.Add", "s.lines[home].fill += passedOne", "", "TestAgainstMap"},
	{"a removed name leaves a mark", "Table.Remove", "s.lines[home].fill -= passedOne", "", "TestAgainstMap"},
	{"a split of names by another bit", "Table.grow", "bit := 63 - s.depth", "bit := 62 - s.depth", "TestAgainstMap"},
	{"a segment that was split is counted", "Table.grow", "t.drop(s)", "", "TestAgainstMap"},
	{"lines that were replaced are counted", "Table.refill", "t.account(-len(old) * lineBytes)", "", "TestAgainstMap"},
	{"a directory that was replaced is counted", "Table.resize", "t.account(-mem.SliceSize(t.segs))", "", "TestAgainstMap"},
	{"lines without what their size class has", "roomy", "mem.Size(lines*lineBytes) / lineBytes", "lines", "TestHeap"},
	{"a table that was released is counted", "Table.Release", "t.account(-t.bytes)", "", "TestCompact"},
	{"a directory that room was made in is counted", "Table.Reserve", "t.account(-mem.SliceSize(old.segs))", "", "TestAgainstMap"},
	{"segments that room was made in are counted", "Table.Reserve", "t.drop(from)", "", "TestAgainstMap"},
	{"room is made again", "Table.Reserve", "n <= t.n+t.Room() ||", "", "TestReserve"},
	{"what became one is seen again", "Table.Some", "t.mixed(h) >= pos {", "t.mixed(h) >= 0 {", "TestSomeDuringCompact"},
	{"neighbours stay apart", "Table.Compact", "if o.depth != s.depth ||", "if true ||", "TestCompact"},
	{"neighbours of other depths become one", "Table.Compact", "if o.depth != s.depth ||", "if", "TestAgainstMap"},
	{"segments that would be split again become one", "Table.Compact", "> segmentLines/2 {", "> 9*segmentLines {", "TestCompact"},
	{"room that stands empty is kept", "Table.Compact", "lines < len(s.lines) &&", "false &&", "TestCompact"},
	{"the directory stays long", "Table.merge", "for t.deepest == 0 {", "for false {", "TestCompact"},
	{"the directory loses its deepest segments", "Table.merge", "for t.deepest == 0 {", "for t.deepest <= 2 && t.depth > 0 {", "TestCompact"},
}}
