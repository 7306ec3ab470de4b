package main

var namesMutants = table{breaks: "./index/internal/names", rows: []mutant{
	{"a name behind a full line is lost", "Table.Add", "s.lines[home].fill += passedOne", "", "TestAgainstMap"},
	{"a removed name leaves a mark", "Table.Remove", "s.lines[home].fill -= passedOne", "", "TestAgainstMap"},
	{"a split of names by another bit", "Table.grow", "bit := 63 - s.depth", "bit := 62 - s.depth", "TestAgainstMap"},
}}
