startCases();
startTables();
startDownloads();
startTheme(redraw);
startCharts();
